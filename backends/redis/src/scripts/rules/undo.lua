-- Undoes a request, whatever became of it.
local function cancel(req)
  quit(req)
  local h, i = hold_of(req)
  if h and h.phase ~= @LINGERING then table.remove(s.holds, i) end
  spend(req, 1, now)
  promote()
end
