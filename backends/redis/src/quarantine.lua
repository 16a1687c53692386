#!lua flags=allow-oom
-- The marker that tells a server which still has its data from one that lost them.
-- KEYS[1] marker; ARGV 1 epoch, 2 started at (us), 3 promoted, 4 nothing can be lost, 5 max_ttl (us), 6 keep (ms), 7 slack (us),
-- 8 by how much the start of one run may seem to differ (us)
local T = redis.call('TIME')
local now = T[1] * 1000000 + T[2]
local m = redis.call('HMGET', KEYS[1], 'epoch', 'till', 'max', 'durable', 'boot')
local max = tonumber(ARGV[5])
if m[3] and tonumber(m[3]) ~= max then return {'MAX', m[3]} end
local till = tonumber(m[2] or '0')
-- A proxy may report one run id for all servers: then only the start time shows a restart.
if m[1] ~= ARGV[1] or m[5] and tonumber(ARGV[2]) > tonumber(m[5]) + ARGV[8] then
  local span = max + ARGV[7]
  local new = ARGV[2] + span
  if ARGV[3] == '1' then new = now + span elseif ARGV[4] == '1' and (not m[1] or m[4] == '1') then new = 0 end
  if new > till then till = new end
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'till', string.format('%.0f', till), 'max', ARGV[5], 'durable', ARGV[4], 'boot', ARGV[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return {'OK', string.format('%.0f', math.max(0, till - now))}
