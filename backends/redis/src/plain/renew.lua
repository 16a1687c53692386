-- KEYS five for each lock; ARGV value, ttl (ms), keep (ms) for each
local answers = {}
for n = 1, #KEYS / 5 do
  local name, fence, info = KEYS[n * 5 - 4], KEYS[n * 5 - 3], KEYS[n * 5 - 2]
  local value, ttl, keep = ARGV[n * 3 - 2], tonumber(ARGV[n * 3 - 1]), tonumber(ARGV[n * 3])
  if redis.call('GET', name) ~= value then
    answers[n] = -1
  else
    local left = redis.call('PTTL', name)
    if left < ttl then
      redis.call('PEXPIRE', name, ttl)
      left = ttl
    end
    redis.call('PEXPIRE', info, left + 60000)
    redis.call('PEXPIRE', fence, left + keep)
    answers[n] = left
  end
end
return answers
