-- Undoes a request, whatever became of it.
local function cancel(req)
  quit(req)
  local h = hold_of(req)
  if h and h.phase ~= @LINGERING then remove(h) end
  remember(req, 1, now)
  promote()
end
