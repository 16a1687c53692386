-- How a request ended: 0 released, 1 cancelled; nothing while it has not.
local function ended(req)
  if string.find(s.ring, req, 1, true) then
    for i = 1, #s.ring, 24 do
      local r, till = unpack('<c16d', s.ring, i)
      if r == req and till > now then return 0, till end
    end
  end
  local till = s.stones > now and call('ZSCORE', s.Z, req)
  if till and tonumber(till) > now then return 1, tonumber(till) end
end
