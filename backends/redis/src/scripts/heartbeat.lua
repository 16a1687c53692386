-- KEYS H Q D W Z of each lock    ARGV which channels PUBLISH counts, via, then for each waiter the
-- number of its lock, its request and its wait. Waiters of one lock stand together.
-- Answers two numbers for each: how many are ahead and what is left (-1 for never); or -1 its turn,
-- -2 not known, and 0.
s.trusted = ARGV[1]
local out, at = {}, 0
for i = 3, #ARGV, 3 do
  local lock, req = tonumber(ARGV[i]), ARGV[i + 1]
  s.own = req
  if lock ~= at then
    if at > 0 then close() end
    at = lock
    open(5 * lock - 4, call('GET', KEYS[5 * lock - 4]))
    drop_ended()
  end
  local c = hear(req, tonumber(ARGV[i + 2]), ARGV[2])
  settle()
  s.stirred = false
  local h = hold_of(req)
  if h and h.phase <= @CLAIMED then
    out[#out + 1], out[#out + 2] = -1, 0
  elseif h or not c then
    out[#out + 1], out[#out + 2] = -2, 0
  else
    out[#out + 1], out[#out + 2] = ahead(req), left(c.mode)
  end
end
if at > 0 then close() end
return out
