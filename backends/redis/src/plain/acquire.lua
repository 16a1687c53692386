-- Takes the lock of the plain recipe, with a token, or says who holds it.
-- ARGV 1 value 2 ttl (ms) 3 owner 4 label 5 min_hold (us) 6 channel 7 waits 8 the marker's key or '' 9 max_ttl (us) 10 keep (us)
@AGREED(8)
local value, ttl = ARGV[1], tonumber(ARGV[2])
if ttl * 1000 > tonumber(ARGV[9]) then return redis.error_reply('DLTTL longer than max_ttl') end
local held = redis.call('GET', KEYS[1])
local i = redis.call('HMGET', KEYS[3], 'v', 'o', 'l', 't', 'g', 'r')
if held == value then return {'G', i[4] or '0', redis.call('PTTL', KEYS[1])} end
if cancelled(value) or given_back(i[6], value) then return {'S'} end
if held then
  if ARGV[7] == '1' then
    redis.call('ZADD', KEYS[4], 'NX', I(us), value .. ARGV[6])
    redis.call('PEXPIRE', KEYS[4], 60000)
  else
    leave(value, ARGV[6])
  end
  local answer = {'B', redis.call('PTTL', KEYS[1])}
  -- Only if the value is the one we know: another client's holder leaves no name.
  if i[1] and string.sub(held, 1, 32) == i[1] then
    answer[3], answer[4], answer[5], answer[6] = i[2], i[3], i[4], I(us - tonumber(i[5]))
  end
  return answer
end
local t = tonumber(redis.call('GET', KEYS[2]) or '0') + 1
if us > t then t = us end
redis.call('SET', KEYS[1], value, 'NX', 'PX', ARGV[2])
redis.call('SET', KEYS[2], I(t), 'PX', I(ttl + ARGV[10] / 1000))
redis.call('HSET', KEYS[3], 'v', value, 'o', ARGV[3], 'l', ARGV[4], 't', I(t), 'g', I(us), 'm', ARGV[5], 'c', ARGV[6])
redis.call('PEXPIRE', KEYS[3], I(ttl + 60000))
leave(value, ARGV[6])
return {'G', I(t), ttl}
