-- What acquire.fast.lua left undecided: the full rules. KEYS, ARGV and variables as there.
-- Answers the token alone if the lock was free, {1, token, block, left, waiters, floor} granted,
-- {2, ahead, left, holder…} in the queue,
-- {3, ahead, left, holder…} busy, {4, 0, permits} or {4, 1, mode} refused, {5, how} ended before.
-- The holder is its token, age, what is left, and its claim.
local req, asked, wait = ARGV[1], claim(ARGV[2]), tonumber(ARGV[3])
s.own, s.trusted, s.keep = req, ARGV[4], tonumber(ARGV[7])
open(1, v)
if not KEYS[5] and (not KEYS[2] or s.stones > now) then return redis.error_reply('TRYAGAIN the lock moves') end
drop_ended()
local queuing = wait and hear(req, wait, asked.via)
settle()

local function granted(h)
  local floor = h.token
  for _, other in ipairs(s.holds) do floor = math.min(floor, other.token) end
  return {1, h.token, h.block, math.max(0, h.expires - now), s.queued, floor}
end

local function standing(kind, place)
  local h = s.holds[1]
  if not h then return {kind, place, left(asked.mode)} end
  return {kind, place, left(asked.mode), h.token, math.max(0, now - h.granted), math.max(0, h.expires - now),
    h.claim.blob}
end

local function refusal()
  local mine
  for _, h in ipairs(s.holds) do
    if asked.mode > 0 and h.claim.mode > 0 and h.claim.mode ~= asked.mode then return {4, 0, h.claim.mode} end
    if not mine and h.phase == @HELD and h.claim.owner == asked.owner then mine = h.claim.mode end
  end
  -- All waiters for permits ask for the same number of them.
  if asked.mode > 0 and s.queued > 0 then
    local n = call('HMGET', s.W, 'p', 'n')
    if n[1] and tonumber(n[2]) ~= asked.mode then return {4, 0, tonumber(n[2])} end
  end
  if mine and mine ~= asked.mode then return {4, 1, mine} end
end

local function last_in_queue()
  local last = -1
  if s.queued > s.unreachable then
    last = tonumber(call('ZREVRANGEBYSCORE', s.Q, '(@UNREACHABLE', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or last)
  end
  if s.unreachable > 0 then last = math.max(last, (call('ZRANGE', s.Q, -1, -1, 'WITHSCORES')[2] or 0) - @UNREACHABLE) end
  for _, h in ipairs(s.holds) do
    if h.phase == @CLAIMED then last = math.max(last, h.since) end
  end
  return last
end

local function acquire()
  local how = ended(req)
  if how then return {5, how} end
  local h = hold_of(req)
  if h then
    if h.phase == @LINGERING then return {5, 0} end
    if h.phase == @REVOKED then return {5, 1} end
    if h.phase == @CLAIMED then
      h.phase, h.granted, h.expires, h.since, h.deadline, s.index = @HELD, now, now + asked.ttl, 0, 0, nil
      promote()
    end
    return granted(h)
  end
  local no = refusal()
  if no then
    if quit(req) then promote() end
    return no
  end
  if (s.delay <= now and s.queued == s.unreachable and fits(asked.mode)) or joins(asked) then
    quit(req)
    return granted(grant(req, asked, @HELD, now + asked.ttl, 0, 0))
  end
  if not wait then
    if quit(req) then promote() end
    return standing(3, s.queued)
  end
  if queuing then return standing(2, ahead(req)) end
  if s.queued == 0 then
    for _, other in ipairs(s.holds) do
      if other.claim.via ~= '' then call('PUBLISH', other.claim.via, 'c' .. other.req .. s.H) end
    end
  end
  local alike = s.queued > s.unreachable and tonumber(call('HGET', s.W, crowd(asked)) or 0) or 0
  join(req, asked, s.latest < now and now or math.max(now, last_in_queue() + 1), now + wait, alike)
  return standing(2, s.queued - 1)
end

local reply = acquire()
close()
return reply
