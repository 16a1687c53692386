-- KEYS H    ARGV 1 req 2 up to this round
local req, upto = ARGV[1], tonumber(ARGV[2])
open(KEYS[1], call('GET', KEYS[1]))
drop_ended()
line_up()
-- A revoked one too: who cancels knows that it does not hold it.
local freed = hold and hold.req == req and hold.round <= upto and hold.phase ~= LINGERING
if freed then hold = nil end
local left = upto == ALL and leave(req)
spend(req, upto, CANCELLED, now)
if freed or (left and not hold) then call_next(req) end
close()
return 1
