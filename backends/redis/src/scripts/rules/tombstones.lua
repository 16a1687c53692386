-- Remembers how requests ended: released ones in a ring of the record, cancelled ones in Z.
-- What the ring has of other requests, and when the first of that is over.
local function others(req)
  local still, oldest = {}, nil
  for i = 1, #s.ring, 24 do
    local r, u = unpack('<c16d', s.ring, i)
    if u > now and r ~= req then
      still[#still + 1] = string.sub(s.ring, i, i + 23)
      oldest = math.min(oldest or u, u)
    end
  end
  return still, oldest
end

-- Remembers that a request has ended. How it ended first stays; but released and then cancelled it
-- counts as cancelled: a copy of it may be under way, and the ring is small.
local function remember(req, how, from)
  local till = from + @TOMBSTONE
  local before, old = ended(req)
  if before == 0 and how == 1 then
    local still, oldest = others(req)
    s.ring, s.oldest = table.concat(still), oldest or 0
  end
  if before then how, till = math.max(how, before), math.max(till, old) end
  if how == 1 then
    s.stones = math.max(s.stones, till)
    call('ZREMRANGEBYSCORE', s.Z, '-inf', now)
    call('ZADD', s.Z, till, req)
    call('ZREMRANGEBYRANK', s.Z, 0, -1 - @STONES)
    call('PEXPIREAT', s.Z, (s.stones - s.stones % 1000) / 1000 + 60000)
    return
  end
  if not before and (#s.ring < @RINGBYTES or s.oldest > now) then
    if s.ring == '' then s.oldest = till end
    s.oldest = math.min(s.oldest, till)
    s.ring = (#s.ring < @RINGBYTES and s.ring or string.sub(s.ring, 25)) .. pack('<c16d', req, till)
    return
  end
  local still, oldest = others(req)
  s.oldest = math.min(oldest or till, till)
  if #still == @RING then table.remove(still, 1) end
  still[#still + 1] = pack('<c16d', req, till)
  s.ring = table.concat(still)
end
