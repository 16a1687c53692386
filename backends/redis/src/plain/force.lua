-- ARGV 1 token or '' for any 2 'n' now or 'r' revoke
local held = redis.call('GET', KEYS[1])
if not held then return {'N'} end
local i = redis.call('HMGET', KEYS[3], 'v', 't', 'c')
local ours = i[1] and string.sub(held, 1, 32) == i[1]
if ARGV[1] ~= '' and not (ours and i[2] == ARGV[1]) then return {'N'} end
if ours then
  cancel(i[1])
  redis.call('PUBLISH', i[3], 'x' .. i[1] .. KEYS[3])
end
-- Taken away before: its holder may still believe in it.
if ARGV[2] == 'r' and ours and held == i[1] .. ':revoked' then return {'F'} end
if ARGV[2] == 'n' or held ~= i[1] then
  redis.call('DEL', KEYS[1])
  wake()
else
  -- Another value with what is left of the lease: the holder's renewal fails, and nobody enters.
  redis.call('SET', KEYS[1], held .. ':revoked', 'XX', 'KEEPTTL')
end
return {'F'}
