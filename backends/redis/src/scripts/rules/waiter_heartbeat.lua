-- A waiter is heard of.
-- The same claim, reachable elsewhere.
local function reachable(c, via)
  local head = 32 + #c.owner + 1
  return claim(string.sub(c.blob, 1, head) .. via .. string.sub(c.blob, head + #c.via + 1))
end

-- Hears of a request; answers its claim if it is in the queue.
local function hear(req, wait, via)
  local h = hold_of(req)
  if h then
    if h.phase ~= @CLAIMED then return end
    h.deadline = math.max(h.deadline, now + wait)
    if h.claim.via ~= via then h.claim = reachable(h.claim, via) end
    return
  end
  local blob = s.queued > 0 and call('HGET', s.W, req)
  if not blob then return end
  local c = claim(blob)
  if c.via ~= via then
    c = reachable(c, via)
    call('HSET', s.W, req, c.blob)
  end
  call('ZADD', s.D, 'GT', now + wait, req)
  if now + wait > s.queue_kept then keep_queue(now + wait) end
  if s.unreachable > 0 then
    local since = tonumber(call('ZSCORE', s.Q, req) or 0)
    if since >= @UNREACHABLE then
      call('ZADD', s.Q, since - @UNREACHABLE, req)
      call('HINCRBY', s.W, crowd(c), 1)
      s.unreachable = s.unreachable - 1
      s.stirred = true
    end
  end
  return c
end
