-- What release.fast.lua left undecided: the full rules. KEYS, ARGV and variables as there.
local req = ARGV[1]
open(KEYS[1], value)
drop_ended()
enqueue_hold()
local how, from = CANCELLED, now
local _, upto, ended = how_ended(req)
if hold and hold.req == req then
  if hold.phase ~= REVOKED then
    how = RELEASED
    local till = hold.granted + hold.min
    if till > now then
      hold.phase = LINGERING
      hold.expires = till
      from = till
    end
  end
elseif upto == ALL then
  how = ended -- how it ended first is how it ended
end
leave(req)
local freed = hold and hold.req == req and hold.phase ~= LINGERING
if freed then hold = nil end
remember(req, ALL, how, from)
if freed then wake_next(req) end
close()
return how == RELEASED and 1 or 0
