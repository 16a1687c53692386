-- KEYS H Q D W Z    ARGV req, claim, wait in microseconds (or ''), which channels PUBLISH counts, the marker's
-- key (or ''), max_ttl, how long to remember
-- The usual cases first, before anything is defined: a free lock, and the confirmation of a promotion.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
@AGREED(5)
if unpack('<d', ARGV[2], 9) > tonumber(ARGV[6]) then return redis.error_reply('DLTTL longer than max_ttl') end
local v = call('GET', KEYS[1])
@NOW
do
  local version, queued, n, oldest, ring, hi, delay, unreachable, stones, queue_kept, soonest, latest, kept, at
  if v then
    version, queued, n, oldest, ring, hi, delay, unreachable, stones, queue_kept, soonest, latest, kept, at =
      unpack('<BI4I4dBc0ddI4ddddd', v)
  else
    version, queued, n, oldest, ring, hi, delay, unreachable, stones, queue_kept, soonest, latest, kept =
      1, 0, 0, 0, '', 0, 0, 0, 0, 0, 0, 0, 0
  end
  -- Nobody holds, nobody waits, nothing forbids it.
  if n == 0 and queued == 0 and delay <= now and version == 1
    and not string.find(ring, ARGV[1], 1, true)
    and (stones <= now or KEYS[5] and not call('ZSCORE', KEYS[5], ARGV[1])) then
    local _, ttl, _, _, block = unpack('<dddi4I4', ARGV[2])
    local token = now
    if hi >= now then token = hi + 1 end
    if block > 1 then block = math.min(block, math.max(1, now + @AHEAD - token)) end
    hi = token + block - 1
    local expires = now + ttl
    local need = (expires > hi and expires or hi) + ARGV[7]
    local fresh = kept < need
    if fresh then kept = need + ARGV[7] / 24 end
    v = pack('<BI4I4dBc0ddI4ddddddI4ddc16BddHc0', 1, 0, 1, oldest, #ring, ring, hi, delay, 0, stones, queue_kept, soonest,
      latest, kept, token, block, 0, 0, ARGV[1], 0, expires, now, #ARGV[2], ARGV[2])
    if fresh then
      call('SET', KEYS[1], v, 'PXAT', (kept - kept % 1000) / 1000)
    else
      call('SET', KEYS[1], v, 'KEEPTTL')
    end
    if block == 1 then return token end -- all else is as asked
    return {1, token, block, ttl, 0, token}
  end
  -- The one hold is this request's claim, exclusive and as asked for; no waiter's time is up.
  if n == 1 and version == 1 and (queued == 0 or soonest > now) then
    local token, block, _, _, req, phase, expires, _, claim = unpack('<dI4ddc16BddHc0', v, at)
    if req == ARGV[1] and phase == @CLAIMED and expires > now and claim == ARGV[2] then
      local _, ttl, _, mode, _, owner = unpack('<dddi4I4s', claim)
      local alike = 'o0:' .. owner
      if #alike == 16 then alike = 'o' .. alike end
      -- Waiters of the same owner enter with it, which the full rules see to.
      if mode == 0 and (queued == unreachable or KEYS[4] and not call('HGET', KEYS[4], alike)) then
        local need = math.max(now + ttl, hi, stones) + ARGV[7]
        local fresh = kept < need
        if fresh then kept = need + ARGV[7] / 24 end
        v = string.sub(v, 1, at - 9) .. pack('<ddI4ddc16BddHc0', kept, token, block, 0, 0, req, @HELD, now + ttl, now,
          #claim, claim)
        if fresh then
          call('SET', KEYS[1], v, 'PXAT', (kept - kept % 1000) / 1000)
        else
          call('SET', KEYS[1], v, 'KEEPTTL')
        end
        return {1, token, block, ttl, queued, token}
      end
    end
  end
end
