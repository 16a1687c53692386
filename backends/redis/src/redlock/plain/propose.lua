-- Takes the lock of the plain recipe at this node.
-- KEYS 1 the recipe's key, 2 what we know of the holder
-- ARGV 1 req 2 round 3 ttl (ms) 4 owner 5 label 6 token 7 min_hold (us) 8 the marker's key or '' 9 max_ttl (us)
@AGREED(8)
if (ARGV[3] - 1) * 1000 >= tonumber(ARGV[9]) then return redis.error_reply('DLTTL longer than max_ttl') end
-- info: v the holder's value, o owner, l label, t token, g granted (us), m min_hold (us)
local call = redis.call
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local held = call('GET', KEYS[1])
local mine = held and string.sub(held, 1, 32) == ARGV[1]
if mine then
  local round = tonumber(string.match(held, '^%x+:(%d+)$'))
  if not round or round > tonumber(ARGV[2]) then return {4} end
  if round == tonumber(ARGV[2]) then return {1, call('PTTL', KEYS[1])} end
  -- A later round: the earlier one is over.
elseif held then
  local i = call('HMGET', KEYS[2], 'v', 'o', 'l', 't', 'g')
  local answer = {2, call('PTTL', KEYS[1])}
  -- Only if the value is the one we know: another client's holder leaves no name.
  if i[1] and string.sub(held, 1, #i[1]) == i[1] then
    answer[3], answer[4], answer[5] = i[2], i[3], i[4]
    answer[6] = string.format('%.0f', us - tonumber(i[5]))
  end
  return answer
end
local value = ARGV[1] .. ':' .. ARGV[2]
call('SET', KEYS[1], value, 'PX', ARGV[3])
call('HSET', KEYS[2], 'v', value, 'o', ARGV[4], 'l', ARGV[5], 't', ARGV[6], 'g', string.format('%.0f', us), 'm', ARGV[7])
call('PEXPIRE', KEYS[2], ARGV[3] + 60000)
return {1, tonumber(ARGV[3])}
