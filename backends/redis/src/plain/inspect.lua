#!lua flags=no-writes
-- KEYS five for each lock
local T = redis.call('TIME')
local us = T[1] * 1000000 + T[2]
local answers = {}
for n = 1, #KEYS / 5 do
  local held = redis.call('GET', KEYS[n * 5 - 4])
  if not held then
    answers[n] = {}
  else
    local i = redis.call('HMGET', KEYS[n * 5 - 2], 'v', 'o', 'l', 't', 'g')
    local answer = {held, redis.call('PTTL', KEYS[n * 5 - 4])}
    if i[1] and string.sub(held, 1, 32) == i[1] then
      answer[3], answer[4], answer[5] = i[2], i[3], i[4]
      answer[6] = string.format('%.0f', us - tonumber(i[5]))
    end
    answers[n] = answer
  end
end
return answers
