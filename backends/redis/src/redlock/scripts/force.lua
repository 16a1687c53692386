-- Takes a lock away from its holder at this node.
-- KEYS H    ARGV 1 token or '' for any, 2 'n' now or 'r' revoke
open(KEYS[1], call('GET', KEYS[1]))
drop_ended()
enqueue_hold()
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
    wake_next(req)
  end
  leave(req)
  remember(req, ALL, CANCELLED, from)
end
close()
return meant and 1 or 0
