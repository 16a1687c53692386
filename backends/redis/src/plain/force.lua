-- Takes a plain lock away from the holder that was seen.
-- ARGV 1 token, or '' for a holder that another program made 2 'n' now or 'r' revoke 3 max_ttl (ms)
local held = redis.call('GET', KEYS[1])
if not held then return 0 end
local i = redis.call('HMGET', KEYS[3], 'v', 't', 'c')
local ours = i[1] and string.sub(held, 1, 32) == i[1]
if (ours and i[2] or '') ~= ARGV[1] then return 0 end
if ours then
  cancel(i[1])
  redis.call('PUBLISH', i[3], 'x' .. i[1] .. KEYS[3])
end
-- A released hold (min_hold still running) has no holder: delete it at once.
if ARGV[2] == 'n' or ours and held == i[1] .. ':released' then
  redis.call('DEL', KEYS[1])
  wake()
elseif string.sub(held, -8) ~= ':revoked' then -- or it was taken away before
  -- Another value with what is left of the lease: the holder's renewal fails, and nobody enters. A
  -- foreign one without an end gets one.
  local left = redis.call('PTTL', KEYS[1])
  redis.call('SET', KEYS[1], held .. ':revoked', 'PX', left >= 0 and math.max(1, left) or ARGV[3])
end
return 1
