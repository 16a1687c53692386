-- What propose.fast.lua left undecided: the full rules. KEYS, ARGV and variables as there.
local req, round, who = ARGV[1], tonumber(ARGV[2]), ARGV[6]
local function propose()
  local known = again(req, round)
  if known then return known end
  local left = tonumber(ARGV[7])
  if left > 0 then return {3, now, left} end
  local waited_for = hold and waiters(hold.req) > 0
  local in_queue = take_place(req, who, tonumber(ARGV[11]), tonumber(ARGV[12]), ARGV[13] == '1', tonumber(ARGV[10]))
  if not admits(req) then
    if in_queue and not waited_for and hold then tell('c', hold.req, hold.who) end
    return busy(in_queue, in_queue and ahead(req))
  end
  local base, p = math.max(hi, now), tonumber(ARGV[5])
  local accepted = p > hi and p > now - ARGV[9] and p < now + ARGV[8]
  if accepted then hi = p end
  return take(req, round, accepted and p or 0, accepted and 1 or 0, base, tonumber(ARGV[3]), tonumber(ARGV[4]), 0, who)
end
keep = tonumber(ARGV[16])
open(KEYS[1], value)
drop_ended()
enqueue_hold()
local answer = propose()
close()
return answer
