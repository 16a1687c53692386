-- Takes a plain lock away from the holder that was seen, at this node.
-- KEYS 1 the recipe's key, 2 what we know of the holder    ARGV 1 token, or '' for a holder that another program made, 2 'n' now or 'r' revoke, 3 max_ttl (ms)
local call = redis.call
local held = call('GET', KEYS[1])
if not held then return 0 end
local i = call('HMGET', KEYS[2], 'v', 't')
local ours = i[1] and string.sub(held, 1, #i[1]) == i[1]
if (ours and i[2] or '') ~= ARGV[1] then return 0 end
local lingers = string.sub(held, -9) == ':released'
if ARGV[2] == 'n' or lingers then
  call('DEL', KEYS[1])
elseif string.sub(held, -8) ~= ':revoked' then
  -- Another value with what is left of the lease: the holder's renewal fails, and nobody enters. A
  -- foreign one without an end gets one.
  local left = call('PTTL', KEYS[1])
  call('SET', KEYS[1], held .. ':revoked', 'PX', left >= 0 and math.max(1, left) or ARGV[3])
end
return 1
