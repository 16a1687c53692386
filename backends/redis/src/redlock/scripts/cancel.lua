-- Undoes a request at this node, and leaves a tombstone.
-- KEYS H    ARGV 1 req 2 up to this round
local req, upto = ARGV[1], tonumber(ARGV[2])
open(KEYS[1], call('GET', KEYS[1]))
drop_ended()
enqueue_hold()
-- A revoked one too: its client cancels, so it knows that it does not hold it.
local freed = hold and hold.req == req and hold.round <= upto and hold.phase ~= LINGERING
if freed then hold = nil end
local left = upto == ALL and leave(req)
remember(req, upto, CANCELLED, now)
if freed or (left and not hold) then wake_next(req) end
close()
return 1
