-- What is asked of the holds again and again within one call: by request, the first of each owner and
-- mode that is held, of which mode they are, how many tokens they have, and when they end. Made when
-- it is first needed, so that a call reads all holds once, however many waiters it is about.
local function count(x, h)
  local mode = h.claim.mode
  x.req[h.req] = h
  if not x.tokens[h.token] then
    x.tokens[h.token] = true
    x.n = x.n + 1
  end
  if mode == 0 then x.exclusive = true end
  if x.mode and x.mode ~= mode then x.mixed = true end
  x.mode = mode
  x.first = math.min(x.first or h.expires, h.expires)
  x.last = math.max(x.last or h.expires, h.expires)
  if h.phase == @HELD then
    local k = crowd(h.claim)
    x.held[k] = x.held[k] or h
  end
end

local function index()
  if not s.index then
    s.index = {req = {}, tokens = {}, held = {}, n = 0}
    for _, h in ipairs(s.holds) do count(s.index, h) end
  end
  return s.index
end

local function hold_of(req)
  if s.index or #s.holds > 8 then return index().req[req] end
  for _, h in ipairs(s.holds) do
    if h.req == req then return h end
  end
end

local function remove(hold)
  s.index = nil
  for i, h in ipairs(s.holds) do
    if h == hold then return table.remove(s.holds, i) end
  end
end
