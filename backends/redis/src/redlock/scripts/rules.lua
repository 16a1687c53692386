-- The rules of one node: the translation of NodeState::step, function by function.
--
-- The record (H) is one string: version, highest token, generation, number in the queue, queue kept
-- until, tombstones until, record kept until, which of the two tombstone hashes is written and how
-- many it has got, whether there is a hold; then the hold (req, round, token or 0, accepted, base,
-- granted, expires, min_hold, phase, healed, place, who). Who is owner, via, label. The place is the
-- hold's own in an otherwise empty queue: it is written to the queue when somebody else comes.
-- Beside it: the queue by ticket (:l) and of it those who keep others out (:b); their deadlines (:d,
-- and :e of those who keep others out); who they are (:w, since and who); tombstones (:z0, :z1).
-- The names are made from H: a node of a quorum is never one of a cluster. Times are microseconds.
local HELD, LINGERING, REVOKED = 0, 1, 2
local RELEASED, CANCELLED = 0, 1
local SECOND, MINUTE = 1000000, 60000000
local ALL = 9007199254740991
local STONES = 2048
local STEP = 1000
local H, v, hi, gen, queued, queue_kept, stones, kept, turn, turned, hold

local function open(key, value)
  H, v = key, value
  hi, gen, queued, queue_kept, stones, kept, turn, turned, hold = 0, 0, 0, 0, 0, 0, 0, 0, nil
  if not v then return end
  if string.byte(v) ~= 1 then
    error(redis.error_reply('DLLAYOUT ' .. H .. ' was written by a newer distlock'))
  end
  local _, has, pos
  _, hi, gen, queued, queue_kept, stones, kept, turn, turned, has, pos = unpack('<BddI4dddBI4B', v)
  if has == 0 then return end
  hold = {}
  hold.req, hold.round, hold.token, hold.accepted, hold.base, hold.granted, hold.expires, hold.min,
    hold.phase, hold.healed, hold.placed, hold.ticket, hold.deadline, hold.backed, hold.who =
    unpack('<c16ddBddddBBBddBHc0', v, pos)
end

-- How long a record that nobody uses is kept, counted from the last bid or renewal: as its client says
-- there, and otherwise as long as requests that ended must be remembered.
local keep = 2 * MINUTE

-- Writes the record if it has changed, with an end that is never near.
local function close()
  if not v and not hold and hi + queued + stones == 0 then return end
  local need, has, tail = math.max(now, hi, stones), 0, ''
  if hold then
    need, has = math.max(need, hold.expires), 1
    tail = pack('<c16ddBddddBBBddBHc0', hold.req, hold.round, hold.token, hold.accepted, hold.base,
      hold.granted, hold.expires, hold.min, hold.phase, hold.healed, hold.placed, hold.ticket,
      hold.deadline, hold.backed, #hold.who, hold.who)
  end
  local fresh = kept < need + keep
  if fresh then kept = need + keep + keep / 24 end
  local s = pack('<BddI4dddBI4B', 1, hi, gen, queued, queue_kept, stones, kept, turn, turned, has) .. tail
  if fresh then
    call('SET', H, s, 'PXAT', (kept - kept % 1000) / 1000)
  elseif s ~= v then
    call('SET', H, s, 'KEEPTTL')
  end
end

local function via(who)
  local _, at = unpack('<Hc0', who)
  return (unpack('<Hc0', who, at))
end

local function tell(kind, req, who)
  local channel = via(who)
  if channel ~= '' then call('PUBLISH', channel, kind .. req .. H) end
end

local function no_queue()
  call('DEL', H .. ':l', H .. ':b', H .. ':d', H .. ':e', H .. ':w')
  queued = 0
end

local function leave(req)
  if queued == 0 or call('ZREM', H .. ':l', req) == 0 then return false end
  call('ZREM', H .. ':b', req)
  call('ZREM', H .. ':d', req)
  call('ZREM', H .. ':e', req)
  call('HDEL', H .. ':w', req)
  queued = queued - 1
  return true
end

local function keep_queue(till)
  if till > queue_kept then queue_kept = till + 10 * SECOND end
  local at = (queue_kept - queue_kept % 1000) / 1000
  for _, part in ipairs({':l', ':b', ':d', ':e', ':w'}) do call('PEXPIREAT', H .. part, at) end
end

local function back(req, ticket, deadline, backed)
  if backed then
    call('ZADD', H .. ':b', ticket, req)
    call('ZADD', H .. ':e', deadline, req)
  else
    call('ZREM', H .. ':b', req)
    call('ZREM', H .. ':e', req)
  end
end

local function join(req, who, ticket, deadline, backed, since)
  call('ZADD', H .. ':l', ticket, req)
  call('ZADD', H .. ':d', deadline, req)
  call('HSET', H .. ':w', req, pack('<d', since) .. who)
  if backed then back(req, ticket, deadline, true) end
  queued = queued + 1
  keep_queue(deadline)
end

-- Writes the hold's own place to the queue.
local function enqueue_hold()
  if not hold or hold.placed == 0 then return end
  hold.placed = 0
  if hold.deadline > now then
    join(hold.req, hold.who, hold.ticket, hold.deadline, hold.backed == 1, hold.granted)
  end
end

local function drop_ended()
  if hold and hold.expires <= now then
    enqueue_hold()
    hold = nil
  end
  if queued == 0 then return end
  -- Every deadline in it is past, or somebody deleted some of our keys: begin anew.
  if queue_kept <= now or call('ZCARD', H .. ':l') ~= queued then return no_queue() end
  -- So many at a time: the rest are dropped by the next moves, and none of them asks for itself.
  for _, req in ipairs(call('ZRANGEBYSCORE', H .. ':d', '-inf', now, 'LIMIT', 0, STEP)) do leave(req) end
end

-- Puts a request in the queue, hears of one that is there, or takes it out. True when it is there.
local function take_place(req, who, ticket, wait, backed, window)
  local old = queued > 0 and call('ZSCORE', H .. ':l', req)
  if not ticket then
    if old then leave(req) end
    return false
  end
  local deadline = now + wait
  if old and tonumber(old) == ticket then
    call('ZADD', H .. ':d', deadline, req)
    back(req, ticket, deadline, backed)
    if backed or deadline > queue_kept then keep_queue(deadline) end
    return true
  end
  -- A ticket is a moment: one from long ago, or from the future, is not believed.
  if math.abs(ticket - now) > window then return false end
  local since = now
  if old then
    since = unpack('<d', call('HGET', H .. ':w', req))
    leave(req)
  end
  join(req, who, ticket, deadline, backed, since)
  return true
end

-- Whether a request may take the lock: it is free, and nobody who keeps others out is ahead.
local function admits(req)
  if hold then return false end
  local first = queued > 0 and call('ZRANGE', H .. ':b', 0, 0)[1]
  if not first or first == req then return true end
  local mine = call('ZRANK', H .. ':l', req)
  return mine and mine < call('ZRANK', H .. ':l', first)
end

local function waiters(but)
  if queued == 0 then return 0 end
  return call('ZSCORE', H .. ':l', but) and queued - 1 or queued
end

-- How many are before it; not the holder, whose place stays until it gives back.
local function ahead(req)
  local mine = call('ZRANK', H .. ':l', req)
  local his = hold and call('ZRANK', H .. ':l', hold.req)
  return his and his < mine and mine - 1 or mine
end

-- Tells the head of the queue, and the first that keeps others out if that is another one.
local function wake_next(by)
  if queued == 0 then return end
  local head = call('ZRANGE', H .. ':l', 0, 0)[1]
  local first = call('ZRANGE', H .. ':b', 0, 0)[1]
  for _, req in ipairs(first and first ~= head and {head, first} or {head}) do
    local who = req ~= by and call('HGET', H .. ':w', req)
    if who then tell('t', req, string.sub(who, 9)) end
  end
end

-- Until when, up to which round, and how a request has ended.
local function how_ended(req)
  if stones <= now then return end
  local s = call('HGET', H .. ':z' .. turn, req) or call('HGET', H .. ':z' .. (1 - turn), req)
  if not s then return end
  local till, upto, how = unpack('<ddB', s)
  if till > now then return till, upto, how end
end

-- Remembers that rounds have ended. How a whole request ended first stays. When one hash is full
-- the other one, which is older, makes room.
local function remember(req, upto, how, from)
  local till = from + MINUTE
  local old_till, old_upto, old_how = how_ended(req)
  if old_till then
    till = math.max(till, old_till)
    if old_upto >= upto then upto, how = old_upto, old_how end
  end
  if turned >= STONES then
    turn, turned = 1 - turn, 0
    call('DEL', H .. ':z' .. turn)
  end
  turned = turned + 1
  stones = math.max(stones, till)
  local z = H .. ':z' .. turn
  call('HSET', z, req, pack('<ddB', till, upto, how))
  call('PEXPIREAT', z, (stones - stones % 1000) / 1000 + 1000)
end

local function granted()
  return {1, now, hold.accepted, hold.base, gen, hold.expires - now, waiters(hold.req)}
end

-- What a round finds that this node knows already: that it has ended, or the same grant. An earlier round of
-- the same request is over when a later one comes.
local function again(req, round)
  local _, upto = how_ended(req)
  if upto and round <= upto then return {4, now} end
  if not hold or hold.req ~= req then return end
  if hold.phase ~= HELD or hold.round > round then return {4, now} end
  if hold.round == round then return granted() end
  hold = nil
end

local function take(req, round, token, accepted, base, ttl, min, healed, who)
  gen = math.max(now, gen + 1)
  hold = {req = req, round = round, token = token, accepted = accepted, base = base, granted = now,
    expires = now + ttl, min = min, phase = HELD, healed = healed, placed = 0, ticket = 0, deadline = 0,
    backed = 0, who = who}
  return granted()
end

local function busy(in_queue, ahead)
  local answer = {2, now, in_queue and 1 or 0, ahead or -1, -1}
  if not hold then
    local last = queued > 0 and call('ZRANGE', H .. ':e', -1, -1, 'WITHSCORES')
    if last and last[2] then answer[5] = math.max(0, tonumber(last[2]) - now) end
    return answer
  end
  answer[5] = math.max(0, hold.expires - now)
  -- Unknown to others until it has a token: it may be a bid that fails.
  if hold.token > 0 then
    answer[6], answer[7], answer[8] = hold.token, math.max(0, now - hold.granted), hold.who
  end
  return answer
end
