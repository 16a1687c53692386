-- Takes a lock away from the holder with a token: revoked, or free at once.
-- KEYS H Q D W Z    ARGV token (or ''), 'now' or 'revoke', which channels PUBLISH counts
-- Answers 1 taken away, 0 nobody holds it with that token.
local token = tonumber(ARGV[1])
s.trusted = ARGV[3]
open(1, call('GET', KEYS[1]))
drop_ended()
settle()
local taken, live = {}, {}
for _, h in ipairs(s.holds) do
  if not token or (token >= h.token and token < h.token + h.block) then
    if h.claim.via ~= '' then call('PUBLISH', h.claim.via, 'x' .. h.req .. s.H) end
    -- Nobody believes in a claim or in a hold that was released: those end at once.
    if ARGV[2] == 'revoke' and (h.phase == @HELD or h.phase == @REVOKED) then
      h.phase = @REVOKED
    else
      h.expires = now
    end
    taken[#taken + 1] = h
  end
  if h.expires > now then live[#live + 1] = h end
end
s.holds, s.index = live, nil
for _, h in ipairs(taken) do remember(h.req, 1, h.expires) end
if #taken > 0 then promote() end
close()
return #taken > 0 and 1 or 0
