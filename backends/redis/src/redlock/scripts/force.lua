-- KEYS H    ARGV 1 token or '' for any, 2 'n' now or 'r' revoke
open(KEYS[1], call('GET', KEYS[1]))
drop_ended()
line_up()
local meant = hold and (ARGV[1] == '' or hold.token == tonumber(ARGV[1]))
if meant then
  local req, from = hold.req, now
  tell('x', req, hold.who)
  if ARGV[2] == 'r' and hold.phase ~= LINGERING then
    hold.phase = REVOKED
    from = hold.expires
  else
    -- Nobody believes in a hold that was released.
    hold = nil
    call_next(req)
  end
  leave(req)
  spend(req, ALL, CANCELLED, from)
end
close()
return meant and 1 or 0
