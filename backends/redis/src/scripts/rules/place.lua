-- When time alone could change something for a mode; -1 for never.
local function left(mode)
  local till = -1
  if #s.holds > 0 then till = mode > 0 and index().first or index().last end
  if s.delay > now then till = math.max(till, s.delay) end
  return till < 0 and till or math.max(0, till - now)
end

-- Nobody, if somebody deleted that part of the line: it begins anew with the next promotion.
local function ahead(req)
  if s.deaf == 0 then return call('ZRANK', s.Q, req) or 0 end
  local since = tonumber(call('ZSCORE', s.Q, req) or 0) % @DEAF
  return call('ZCOUNT', s.Q, '-inf', string.format('(%.0f', since))
    + call('ZCOUNT', s.Q, @DEAF, string.format('(%.0f', since + @DEAF))
end
