-- Gives this node a hold that a majority granted and this node lacks.
-- KEYS H of each    ARGV 1 quarantine left, 2 the marker's key or '', 3 max_ttl, 4 how long to remember; then for each: req, round, ttl, min_hold, token, who
@AGREED(2)
local left, max = tonumber(ARGV[1]), tonumber(ARGV[3])
keep = tonumber(ARGV[4])
local function heal(at)
  local req, round, token = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 4])
  local known = again(req, round)
  if known then
    -- A straggler of the very round that was granted: it learns the token by this.
    if known[1] == 1 then
      hold.token = token
      hi = math.max(hi, token)
    end
    return known
  end
  if left > 0 then return {3, now, left} end
  if hold then return busy(false) end
  local base = math.max(hi, now)
  hi = math.max(hi, token)
  return take(req, round, token, 0, base, math.min(ARGV[at + 2], max), tonumber(ARGV[at + 3]), 1, ARGV[at + 5])
end
local answers = {}
for i, key in ipairs(KEYS) do
  open(key, call('GET', key))
  drop_ended()
  enqueue_hold()
  answers[i] = heal(i * 6 - 1)
  close()
end
return answers
