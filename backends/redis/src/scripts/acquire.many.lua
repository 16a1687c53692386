-- KEYS the record of each lock    ARGV the marker's key (or ''), max_ttl, how long to remember, then for each lock
-- req and claim
-- The usual case of `acquire` for many locks: answers the token of each that was free, and 0 for each that is to be
-- asked by itself.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
@AGREED(1)
@NOW
local longest, keep, tokens = tonumber(ARGV[2]), ARGV[3], {}
for i = 1, #KEYS do
  local req, claim = ARGV[2 * i + 2], ARGV[2 * i + 3]
  local v = call('GET', KEYS[i])
  local version, queued, n, oldest, ring, hi, delay, unreachable, stones, queue_kept, soonest, latest, kept
  if v then
    version, queued, n, oldest, ring, hi, delay, unreachable, stones, queue_kept, soonest, latest, kept =
      unpack('<BI4I4dBc0ddI4ddddd', v)
  else
    version, queued, n, oldest, ring, hi, delay, unreachable, stones, queue_kept, soonest, latest, kept =
      1, 0, 0, 0, '', 0, 0, 0, 0, 0, 0, 0, 0
  end
  local _, ttl, _, _, block = unpack('<dddi4I4', claim)
  tokens[i] = 0
  if n == 0 and queued == 0 and delay <= now and version == 1 and stones <= now and block == 1 and ttl <= longest
    and not string.find(ring, req, 1, true) then
    local token = now
    if hi >= now then token = hi + 1 end
    local expires = now + ttl
    local need = (expires > token and expires or token) + keep
    local fresh = kept < need
    if fresh then kept = need + keep / 24 end
    v = pack('<BI4I4dBc0ddI4ddddddI4ddc16BddHc0', 1, 0, 1, oldest, #ring, ring, token, delay, 0, stones, queue_kept,
      soonest, latest, kept, token, 1, 0, 0, req, 0, expires, now, #claim, claim)
    if fresh then
      call('SET', KEYS[i], v, 'PXAT', (kept - kept % 1000) / 1000)
    else
      call('SET', KEYS[i], v, 'KEEPTTL')
    end
    tokens[i] = token
  end
end
return tokens
