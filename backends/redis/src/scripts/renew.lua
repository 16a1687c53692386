s.trusted = ARGV[1] == '1'
for _, i in ipairs(rest) do
  local at, req = 5 * i - 4, ARGV[2 * i]
  open(at, call('GET', KEYS[at]))
  drop_ended()
  settle()
  local h = hold_of(req)
  if h and h.phase == @HELD then
    h.expires = math.max(h.expires, now + ARGV[2 * i + 1])
    out[2 * i - 1], out[2 * i] = h.expires - now, s.queued
  else
    out[2 * i - 1], out[2 * i] = h and h.phase == @REVOKED and -2 or -1, 0
  end
  close()
end
return out
