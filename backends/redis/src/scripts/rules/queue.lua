-- The queue: waiters by place, by deadline and by claim.
-- The field that counts the reachable waiters of an owner and mode. Never as long as a request.
local function crowd(c)
  local k = 'o' .. c.mode .. ':' .. c.owner
  if #k == 16 then k = 'o' .. k end
  return k
end

-- Counts one less there, and takes the request's claim away with it.
local function less(field, req)
  local n = tonumber(call('HGET', s.W, field) or 0) - 1
  if n > 0 then
    call('HSET', s.W, field, n)
    if req then call('HDEL', s.W, req) end
  else
    call('HDEL', s.W, field, req or field)
  end
end

local function keep_queue(till)
  s.queue_kept = till + @HOUR
  local at = (s.queue_kept - s.queue_kept % 1000) / 1000
  call('PEXPIREAT', s.Q, at)
  call('PEXPIREAT', s.D, at)
  call('PEXPIREAT', s.W, at)
end

-- Puts a waiter in the queue; `alike` is how many of its owner and mode are there already.
local function join(req, c, since, deadline, alike)
  call('ZADD', s.Q, alike and since or since + @UNREACHABLE, req)
  call('ZADD', s.D, deadline, req)
  if alike then
    call('HSET', s.W, req, c.blob, crowd(c), alike + 1)
  else
    call('HSET', s.W, req, c.blob)
    s.unreachable = s.unreachable + 1
  end
  if c.mode > 0 then
    call('HINCRBY', s.W, 'p', 1)
    call('HSET', s.W, 'n', c.mode)
  end
  if s.queued == 0 or deadline > s.queue_kept then keep_queue(deadline) end
  if s.queued == 0 or deadline < s.soonest then s.soonest = deadline end
  s.latest = math.max(s.latest, since)
  s.queued = s.queued + 1
end

local function no_queue()
  call('DEL', s.Q, s.D, s.W)
  s.queued, s.unreachable = 0, 0
end

local function strike(req, c, unheard)
  if s.queued == 1 then return no_queue() end
  call('ZREM', s.Q, req)
  call('ZREM', s.D, req)
  if unheard then
    call('HDEL', s.W, req)
    s.unreachable = s.unreachable - 1
  else
    less(crowd(c), req)
  end
  if c.mode > 0 then less('p') end
  s.queued = s.queued - 1
end

-- Takes a request out of the queue, if it is in it.
local function quit(req)
  local blob = s.queued > 0 and call('HGET', s.W, req)
  if not blob then return false end
  strike(req, claim(blob), tonumber(call('ZSCORE', s.Q, req) or 0) >= @UNREACHABLE)
  return true
end
