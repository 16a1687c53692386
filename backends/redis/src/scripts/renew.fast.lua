-- KEYS H Q D W Z of each lock    ARGV which channels PUBLISH counts, the marker's key (or ''), max_ttl, how
-- long to remember, then req and ttl of each lock
-- Answers two numbers for each: what is left and how many wait; or -1 gone, -2 revoked, and 0.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
@AGREED(2)
local max, keep = tonumber(ARGV[3]), tonumber(ARGV[4])
@NOW
local v
local out, rest = {}, {}
for i = 1, math.ceil(#KEYS / 5) do
  v = call('GET', KEYS[5 * i - 4])
  local done = false
  -- The usual case first: the one live hold is this one and nobody waits.
  if v then
    local version, queued, n, _, _, at = unpack('<BI4I4dBc0', v)
    if n == 1 and queued == 0 and version == 1 then
      local kept, _, _, _, _, req, phase, expires = unpack('<ddI4ddc16Bd', v, at + 52)
      local till = now + math.min(ARGV[2 * i + 4], max)
      if req == ARGV[2 * i + 3] and phase == 0 and expires > now and till + keep <= kept then
        if till > expires then
          call('SETRANGE', KEYS[5 * i - 4], at + 104, pack('<d', till))
          expires = till
        end
        out[2 * i - 1], out[2 * i], done = expires - now, 0, true
      end
    end
  end
  if not done then rest[#rest + 1] = i end
end
if #rest == 0 then return out end
