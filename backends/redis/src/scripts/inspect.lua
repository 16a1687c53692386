-- KEYS H Q D W Z of each lock. Answers the time, then for each lock its record and, where somebody
-- waits, Q, D and W as they are.
local call = redis.call
@NOW
local out = {now}
for i = 1, #KEYS, 5 do
  local v = call('GET', KEYS[i])
  local lock = {v}
  if v and not KEYS[2] and struct.unpack('<I4', v, 2) > 0 then
    return redis.error_reply('TRYAGAIN the lock moves')
  end
  if v and struct.unpack('<I4', v, 2) > 0 then
    lock = {v, call('ZRANGE', KEYS[i + 1], 0, -1, 'WITHSCORES'), call('ZRANGE', KEYS[i + 2], 0, -1, 'WITHSCORES'),
      call('HGETALL', KEYS[i + 3])}
  end
  out[#out + 1] = lock
end
return out
