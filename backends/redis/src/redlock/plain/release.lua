-- Gives a plain lock back, or undoes a request, at this node.
-- KEYS 1 the recipe's key, 2 what we know of the holder
-- ARGV 1 req 2 'r' release, or the last round to cancel
-- Compare and delete.
local call = redis.call
local held = call('GET', KEYS[1])
if not held or string.sub(held, 1, 32) ~= ARGV[1] then return 0 end
local round, after = string.match(held, '^%x+:(%d+)(.*)$')
if not round then return ARGV[2] == 'r' and 1 or 0 end -- given back already: its min_hold runs
if ARGV[2] ~= 'r' then
  if tonumber(round) <= tonumber(ARGV[2]) then call('DEL', KEYS[1]) end
  return 1
end
if after ~= '' then
  call('DEL', KEYS[1]) -- who gives back a revoked one has stopped
  return 0
end
local i = call('HMGET', KEYS[2], 'v', 'g', 'm')
local rest = 0
if i[1] == held then
  local time = call('TIME')
  rest = math.ceil((tonumber(i[2]) + tonumber(i[3]) - time[1] * 1000000 - time[2]) / 1000)
end
if rest > 0 then
  call('SET', KEYS[1], ARGV[1] .. ':released', 'PX', rest)
  call('HSET', KEYS[2], 'v', ARGV[1] .. ':released')
  call('PEXPIRE', KEYS[2], rest + 60000)
else
  call('DEL', KEYS[1])
  call('DEL', KEYS[2])
end
return 1
