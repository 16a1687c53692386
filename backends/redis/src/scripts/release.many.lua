-- KEYS the record of each lock    ARGV req for each lock
-- The usual case of `release` for many locks: answers 1 for each that was given back, and 0 for each that is to be
-- given back by itself.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
@NOW
local done = {}
for i = 1, #KEYS do
  local v = call('GET', KEYS[i])
  done[i] = 0
  if v then
    local version, queued, n, oldest, ring, at = unpack('<BI4I4dBc0', v)
    if n == 1 and queued == 0 and version == 1 then
      local req, phase, expires, granted, _, min = unpack('<c16BddHd', v, at + 88)
      if req == ARGV[i] and phase == 0 and expires > now and granted + min <= now
        and (#ring < @RINGBYTES or oldest > now) then
        local till = now + @TOMBSTONE
        if ring == '' then oldest = till end
        if #ring == @RINGBYTES then ring = string.sub(ring, 25) end
        call('SET', KEYS[i], pack('<BI4I4dBc0c16dc0', 1, 0, 0, oldest, #ring + 24, ring, req, till,
          string.sub(v, at, at + 59)), 'KEEPTTL')
        done[i] = 1
      end
    end
  end
end
return done
