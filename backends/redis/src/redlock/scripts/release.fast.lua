-- KEYS H    ARGV 1 req
-- The usual case first: it holds, nobody waits, and no min_hold is left.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
--@now
local value = call('GET', KEYS[1])
if value and string.byte(value) == 1 then
  local _, hi, gen, queued, queue_kept, stones, kept, turn, turned, has, pos = unpack('<BddI4dddBI4B', value)
  if has == 1 and queued == 0 and turned < 2048 then
    local req, _, _, _, _, granted, expires, min, phase = unpack('<c16ddBddddB', value, pos)
    if req == ARGV[1] and expires > now and phase == 0 and granted + min <= now then
      local till, z = now + 60000000, KEYS[1] .. ':z' .. turn
      if till > stones then stones = till end
      call('HSET', z, req, pack('<ddB', till, 9007199254740991, 0))
      call('PEXPIREAT', z, (stones - stones % 1000) / 1000 + 1000)
      local need = math.max(hi, stones) + 120000000
      local fresh = kept < need
      if fresh then kept = need + 60000000 end
      value = pack('<BddI4dddBI4B', 1, hi, gen, 0, queue_kept, stones, kept, turn, turned + 1, 0)
      if fresh then
        call('SET', KEYS[1], value, 'PXAT', (kept - kept % 1000) / 1000)
      else
        call('SET', KEYS[1], value, 'KEEPTTL')
      end
      return 1
    end
  end
end
