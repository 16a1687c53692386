-- KEYS H    ARGV 1 req 2 round 3 ttl 4 min_hold 5 token 6 who 7 quarantine left
--                8 ahead 9 slack 10 window 11 ticket or '' 12 wait 13 1 if backed, else 0
--                14 the marker's key or '' 15 max_ttl 16 how long to remember
@AGREED(14)
if tonumber(ARGV[3]) > tonumber(ARGV[15]) then return redis.error_reply('DLTTL longer than max_ttl') end
-- The usual case first, before anything is defined: nobody holds, nobody waits, nothing forbids it.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
--@now
local value = call('GET', KEYS[1])
if ARGV[7] == '0' then
  local version, hi, gen, queued, queue_kept, stones, kept, turn, turned, has, pos = 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  if value then
    version, hi, gen, queued, queue_kept, stones, kept, turn, turned, has, pos = unpack('<BddI4dddBI4B', value)
    -- The hold of before may just have expired.
    if has == 1 then
      local _, _, _, _, _, _, expires, _, _, _, placed, _, deadline = unpack('<c16ddBddddBBBdd', value, pos)
      if expires <= now and (placed == 0 or deadline <= now) then has = 0 end
    end
  end
  if version == 1 and has == 0 and queued == 0 and (stones <= now
    or not (call('HGET', KEYS[1] .. ':z' .. turn, ARGV[1]) or call('HGET', KEYS[1] .. ':z' .. (1 - turn), ARGV[1]))) then
    local p, ttl, base, accepted, token = tonumber(ARGV[5]), tonumber(ARGV[3]), now, 0, 0
    if hi > now then base = hi end
    if p > hi and p > now - ARGV[9] and p < now + ARGV[8] then hi, token, accepted = p, p, 1 end
    gen = gen + 1
    if now > gen then gen = now end
    local placed, ticket, deadline, backed = 0, 0, 0, 0
    if ARGV[11] ~= '' and math.abs(ARGV[11] - now) <= tonumber(ARGV[10]) then
      placed, ticket, deadline, backed = 1, tonumber(ARGV[11]), now + ARGV[12], tonumber(ARGV[13])
    end
    local need = math.max(now + ttl, hi, stones) + ARGV[16]
    local fresh = kept < need
    if fresh then kept = need + ARGV[16] / 24 end
    value = pack('<BddI4dddBI4Bc16ddBddddBBBddBHc0', 1, hi, gen, 0, queue_kept, stones, kept, turn, turned, 1,
      ARGV[1], tonumber(ARGV[2]), token, accepted, base, now, now + ttl, tonumber(ARGV[4]), 0, 0, placed, ticket,
      deadline, backed, #ARGV[6], ARGV[6])
    if fresh then
      call('SET', KEYS[1], value, 'PXAT', (kept - kept % 1000) / 1000)
    else
      call('SET', KEYS[1], value, 'KEEPTTL')
    end
    return {1, now, accepted, base, gen, ttl, 0}
  end
end
