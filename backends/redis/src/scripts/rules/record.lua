-- The record (H) is one string. First what a release changes: version, how many are queued, number
-- of holds, nothing of the ring is over before, the ring of released requests (req, until). Then:
-- highest token, delay until, how many of the queued are unreachable, tombstones until, queue kept until, no
-- deadline before, no place after, record kept until. Then the holds: token, block, since, deadline,
-- req, phase, expires, granted, claim. A claim is min_hold, ttl, lock_delay, mode, block, owner, via,
-- label. The queue is Q (req -> since, plus UNREACHABLE while passed over), D (req -> deadline) and W (req ->
-- claim, and counts); Z holds the tombstones (req -> until). Times are microseconds.
--
-- In s besides: own, the request whose answer tells it that it is its turn; trusted, of which
-- channels the count of PUBLISH is to be believed; silent, the channels it was 0 for; stirred, whether time or a
-- voice has changed who can be promoted (every move leaves nobody behind who can). One table and
-- numbers filled in, because each name a function borrows costs at every call.
local s = {silent = {}}

local function claim(blob)
  local c = {blob = blob}
  c.min, c.ttl, c.after, c.mode, c.block, c.owner, c.via = unpack('<dddi4I4ss', blob)
  return c
end

local function open(at, value)
  s.H, s.Q, s.D, s.W, s.Z = KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3], KEYS[at + 4]
  v, s.index = value, nil
  s.hi, s.delay, s.queued, s.unreachable, s.stones, s.kept, s.queue_kept, s.soonest, s.latest, s.oldest, s.ring, s.holds =
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', {}
  if not v then return end
  if string.byte(v) ~= 1 then
    error(redis.error_reply('DLLAYOUT ' .. s.H .. ' was written by a newer distlock'))
  end
  local _, n, pos
  _, s.queued, n, s.oldest, s.ring, s.hi, s.delay, s.unreachable, s.stones, s.queue_kept, s.soonest, s.latest, s.kept, pos =
    unpack('<BI4I4dBc0ddI4ddddd', v)
  for i = 1, n do
    local h, blob = {}, nil
    h.token, h.block, h.since, h.deadline, h.req, h.phase, h.expires, h.granted, blob, pos =
      unpack('<dI4ddc16BddHc0', v, pos)
    h.claim = claim(blob)
    s.holds[i] = h
  end
end

-- Writes the record if it has changed, with an end that is never near: as its client says, counted
-- from the last acquire or renewal.
local function close()
  local parts, need = {''}, math.max(now, s.hi, s.stones)
  for _, h in ipairs(s.holds) do
    need = math.max(need, h.expires)
    parts[#parts + 1] = pack('<dI4ddc16BddHc0', h.token, h.block, h.since, h.deadline, h.req, h.phase, h.expires,
      h.granted, #h.claim.blob, h.claim.blob)
  end
  local keep = s.keep or @LEAST
  local fresh = s.kept < need + keep
  if fresh then s.kept = need + keep + keep / 24 end
  parts[1] = pack('<BI4I4dBc0ddI4ddddd', 1, s.queued, #s.holds, s.oldest, #s.ring, s.ring, s.hi, s.delay, s.unreachable, s.stones, s.queue_kept,
    s.soonest, s.latest, s.kept)
  local text = table.concat(parts)
  if fresh then
    call('SET', s.H, text, 'PXAT', (s.kept - s.kept % 1000) / 1000)
  elseif text ~= v then
    call('SET', s.H, text, 'KEEPTTL')
  end
end
