#!lua flags=no-writes
-- KEYS the recipe's key and what we know of the holder, of each lock
local call = redis.call
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local answers = {}
for n = 1, #KEYS / 2 do
  local held = call('GET', KEYS[n * 2 - 1])
  if not held then
    answers[n] = {}
  else
    local i = call('HMGET', KEYS[n * 2], 'v', 'o', 'l', 't', 'g')
    local answer = {held, call('PTTL', KEYS[n * 2 - 1])}
    if i[1] and string.sub(held, 1, #i[1]) == i[1] then
      answer[3], answer[4], answer[5] = i[2], i[3], i[4]
      answer[6] = string.format('%.0f', us - tonumber(i[5]))
    end
    answers[n] = answer
  end
end
return answers
