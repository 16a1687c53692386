-- Gives a plain lock back (r) or undoes a request (c).
-- ARGV 1 value 2 'r' release or 'c' cancel 3 channel
local value = ARGV[1]
local i = redis.call('HMGET', KEYS[3], 'v', 'g', 'm', 'r')
local mine = redis.call('GET', KEYS[1]) == value
if ARGV[2] == 'c' then
  cancel(value)
  leave(value, ARGV[3])
  if mine then
    redis.call('DEL', KEYS[1])
    wake()
  end
  return {'C'}
end
if not mine then
  if given_back(i[4], value) then return {'R'} end
  cancel(value)
  return {'L'}
end
redis.call('HSET', KEYS[3], 'r', remember(i[4], value))
redis.call('PEXPIRE', KEYS[3], 120000)
local rest = 0
if i[1] == value then rest = math.ceil((math.min(tonumber(i[2]), us) + tonumber(i[3]) - us) / 1000) end
if rest > 0 then
  redis.call('SET', KEYS[1], value .. ':released', 'PX', I(rest))
else
  redis.call('DEL', KEYS[1])
  wake()
end
return {'R'}
