-- Extends the leases of plain locks at this node.
-- KEYS two for each; ARGV the marker's key or '', max_ttl (us), one for scripts with a memory, then for each: req, round or '' for
-- any, ttl (ms)
@AGREED(1)
local max = math.ceil(ARGV[2] / 1000)
-- Compare and extend.
local call = redis.call
local answers = {}
for n = 1, #KEYS / 2 do
  local name, info = KEYS[n * 2 - 1], KEYS[n * 2]
  local req, meant, ttl = ARGV[n * 3 + 1], ARGV[n * 3 + 2], math.min(ARGV[n * 3 + 3], max)
  local held = call('GET', name)
  local round = held and string.sub(held, 1, 32) == req and string.match(held, '^%x+:(%d+)$')
  if round and (meant == '' or meant == round) then
    local left = call('PTTL', name)
    if left < ttl then
      call('PEXPIRE', name, ttl)
      left = ttl
    end
    call('PEXPIRE', info, left + 60000)
    answers[n] = {1, tonumber(round), left, call('HGET', info, 't') or '0'}
  elseif held and string.sub(held, 1, 32) == req and string.sub(held, -8) == ':revoked' then
    answers[n] = {2}
  else
    answers[n] = {0}
  end
end
return answers
