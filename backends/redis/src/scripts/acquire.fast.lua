-- KEYS H Q D W Z    ARGV req, claim, wait in microseconds (or ''), whom PUBLISH counts
-- The usual case first, before anything is defined: nobody holds, nobody waits, nothing forbids it.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local v = call('GET', KEYS[1])
--@now
do
  local version, hi, delay, queued, deaf, stones, kept, line_kept, oldest, n, ring
  if v then
    version, hi, delay, queued, deaf, stones, kept, line_kept, oldest, n, ring = unpack('<BddI4I4ddddI4Bc0', v)
  else
    version, hi, delay, queued, deaf, stones, kept, line_kept, oldest, n, ring = 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, ''
  end
  if n == 0 and queued == 0 and delay <= now and version == 1
    and not string.find(ring, ARGV[1], 1, true)
    and (stones <= now or KEYS[5] and not call('ZSCORE', KEYS[5], ARGV[1])) then
    local ttl, _, _, _, block = unpack('<dddi4I4', ARGV[2])
    local token = now
    if hi >= now then token = hi + 1 end
    if block > 1 then block = math.min(block, math.max(1, now + 1000000 - token)) end
    hi = token + block - 1
    local expires = now + ttl
    local need = (expires > hi and expires or hi) + 86400000000
    local fresh = kept < need
    if fresh then kept = need + 3600000000 end
    v = pack('<BddI4I4ddddI4Bc0c16BdddI4ddH', 1, hi, delay, 0, 0, stones, kept, line_kept, oldest, 1, #ring, ring,
      ARGV[1], 0, expires, now, token, block, 0, 0, #ARGV[2]) .. ARGV[2]
    if fresh then
      call('SET', KEYS[1], v, 'PXAT', (kept - kept % 1000) / 1000)
    else
      call('SET', KEYS[1], v, 'KEEPTTL')
    end
    return {1, token, block, ttl, 0, token}
  end
end
