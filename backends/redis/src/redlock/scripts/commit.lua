-- Writes the agreed token into a granted hold.
-- KEYS H    ARGV 1 req 2 round 3 generation 4 token
open(KEYS[1], call('GET', KEYS[1]))
drop_ended()
local mine = hold and hold.req == ARGV[1] and hold.phase == HELD
  and hold.round == tonumber(ARGV[2]) and gen == tonumber(ARGV[3])
if mine then
  hold.token = tonumber(ARGV[4])
  hi = math.max(hi, hold.token)
end
close()
return mine and 1 or 0
