-- Remembers that a request has ended. How it ended first stays.
local function spend(req, how, from)
  local till = from + @TOMBSTONE
  local before, old = ended(req)
  if before then how, till = before, math.max(till, old) end
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
  local still = {}
  s.oldest = till
  for i = 1, #s.ring, 24 do
    local r, u = unpack('<c16d', s.ring, i)
    if u > now and r ~= req then
      still[#still + 1] = string.sub(s.ring, i, i + 23)
      s.oldest = math.min(s.oldest, u)
    end
  end
  if #still == @RING then table.remove(still, 1) end
  still[#still + 1] = pack('<c16d', req, till)
  s.ring = table.concat(still)
end
