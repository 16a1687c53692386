-- KEYS H Q D W Z    ARGV req, which channels PUBLISH counts
-- The usual case first: the one live hold is this one, nobody waits, its min_hold is over.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local v = call('GET', KEYS[1])
@NOW
if v then
  local version, queued, n, oldest, ring, at = unpack('<BI4I4dBc0', v)
  if n == 1 and queued == 0 and version == 1 then
    local req, phase, expires, granted, _, min = unpack('<c16BddHd', v, at + 88)
    if req == ARGV[1] and phase == 0 and expires > now and granted + min <= now and (#ring < @RINGBYTES or oldest > now) then
      local till = now + @TOMBSTONE
      if ring == '' then oldest = till end
      if #ring == @RINGBYTES then ring = string.sub(ring, 25) end
      call('SET', KEYS[1], pack('<BI4I4dBc0c16dc0', 1, 0, 0, oldest, #ring + 24, ring, req, till,
        string.sub(v, at, at + 59)), 'KEEPTTL')
      return 1
    end
  end
end
