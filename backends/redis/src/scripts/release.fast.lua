-- KEYS H Q D W Z    ARGV req, whom PUBLISH counts
-- The usual case first: the one live hold is this one, nobody waits, its min_hold is over.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local v = call('GET', KEYS[1])
--@now
if v then
  local version, hi, delay, queued, deaf, stones, kept, line_kept, oldest, n, ring, at = unpack('<BddI4I4ddddI4Bc0', v)
  if n == 1 and queued == 0 and version == 1 then
    local req, phase, expires, granted, _, _, _, _, _, _, min = unpack('<c16BdddI4ddHdd', v, at)
    if req == ARGV[1] and phase == 0 and expires > now and granted + min <= now and (#ring < 192 or oldest > now) then
      local till = now + 60000000
      if ring == '' or till < oldest then oldest = till end
      if #ring == 192 then ring = string.sub(ring, 25) end
      call('SET', KEYS[1], pack('<BddI4I4ddddI4Bc0c16d', 1, hi, delay, 0, deaf, stones, kept, line_kept, oldest, 0,
        #ring + 24, ring, req, till), 'KEEPTTL')
      return 1
    end
  end
end
