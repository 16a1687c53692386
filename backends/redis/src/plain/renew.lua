-- Extends the leases of plain locks that are still held.
-- KEYS five for each lock; ARGV the marker's key or '', max_ttl (us), keep (us), then for each value, ttl (ms)
@AGREED(1)
local max, keep = math.floor(ARGV[2] / 1000), math.floor(ARGV[3] / 1000)
local answers = {}
for n = 1, #KEYS / 5 do
  local name, fence, info = KEYS[n * 5 - 4], KEYS[n * 5 - 3], KEYS[n * 5 - 2]
  local value, ttl = ARGV[n * 2 + 2], math.min(ARGV[n * 2 + 3], max)
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
