-- Extends the leases of many holds at this node.
-- KEYS H of each    ARGV 1 the marker's key or '', 2 max_ttl, 3 how long to remember; then for each: req,
-- generation or '', ttl
@AGREED(1)
local max = tonumber(ARGV[2])
keep = tonumber(ARGV[3])
local function renew(at)
  local req, meant = ARGV[at], tonumber(ARGV[at + 1])
  if not hold or hold.req ~= req then return {0} end
  if hold.phase == REVOKED then return {2} end
  if hold.phase ~= HELD then return {0} end
  if meant and meant ~= gen or not meant and hold.healed == 1 then return {0} end
  hold.expires = math.max(hold.expires, now + math.min(ARGV[at + 2], max))
  -- A renewal that names the generation has counted this node in its majority: the heal is settled.
  if meant then hold.healed = 0 end
  return {1, gen, hold.expires - now, hold.token, waiters(req)}
end
local answers = {}
for i, key in ipairs(KEYS) do
  open(key, call('GET', key))
  drop_ended()
  answers[i] = renew(i * 3 + 1)
  close()
end
return answers
