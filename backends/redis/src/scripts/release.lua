-- What release.fast.lua left undecided: the full rules. KEYS, ARGV and variables as there.
-- Answers 1 released, 2 not held any more, 3 revoked.
local req = ARGV[1]
s.trusted = ARGV[2]
open(1, v)
if not KEYS[5] then
  local h = hold_of(req)
  if not KEYS[2] or s.stones > now or not h or h.expires <= now then
    return redis.error_reply('TRYAGAIN the lock moves')
  end
end
drop_ended()
settle()

local function release()
  local h = hold_of(req)
  if not h then
    if ended(req) == 0 then return 1 end
    -- Too late, but its holder is done with it: an acquire still under way must not bring it back.
    cancel(req)
    return 2
  end
  if h.phase == @LINGERING then return 1 end
  local till = math.min(h.granted, now) + h.claim.min
  if h.phase == @HELD and till > now then
    h.phase, h.expires, s.index = @LINGERING, till, nil
    remember(req, 0, till)
    return 1
  end
  remove(h)
  remember(req, 0, now)
  promote()
  return h.phase == @REVOKED and 3 or 1
end

local reply = release()
close()
return reply
