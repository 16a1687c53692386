-- KEYS H Q D W Z of each lock    ARGV whom PUBLISH counts, then req and ttl of each lock
-- Answers two numbers for each: what is left and how many wait; or -1 gone, -2 revoked, and 0.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
--@now
local v
local out, rest = {}, {}
for i = 1, math.ceil(#KEYS / 5) do
  v = call('GET', KEYS[5 * i - 4])
  local done = false
  -- The usual case first: the one live hold is this one and nobody waits.
  if v then
    local version, hi, _, queued, _, _, kept, _, _, n, ring, at = unpack('<BddI4I4ddddI4Bc0', v)
    if n == 1 and queued == 0 and version == 1 then
      local req, phase, expires = unpack('<c16Bd', v, at)
      local till = now + ARGV[2 * i + 1]
      if req == ARGV[2 * i] and phase == 0 and expires > now and till + 86400000000 <= kept then
        if till > expires then
          call('SETRANGE', KEYS[5 * i - 4], at + 16, pack('<d', till))
          expires = till
        end
        out[2 * i - 1], out[2 * i], done = expires - now, 0, true
      end
    end
  end
  if not done then rest[#rest + 1] = i end
end
if #rest == 0 then return out end
