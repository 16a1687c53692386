-- What renew.fast.lua left undecided: the full rules. KEYS, ARGV and variables as there.
s.trusted, s.keep = ARGV[1], keep
for _, i in ipairs(rest) do
  local at, req = 5 * i - 4, ARGV[2 * i + 3]
  open(at, call('GET', KEYS[at]))
  -- With the record alone a hold is kept, and the queue has to wait.
  if KEYS[2] then
    drop_ended()
    settle()
  end
  local h = hold_of(req)
  if h and h.phase == @HELD and h.expires > now then
    h.expires = math.max(h.expires, now + math.min(ARGV[2 * i + 4], max))
    out[2 * i - 1], out[2 * i] = h.expires - now, s.queued
  else
    out[2 * i - 1], out[2 * i] = h and h.phase == @REVOKED and -2 or -1, 0
  end
  close()
end
return out
