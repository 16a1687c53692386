-- What a waiter is told: how many are ahead, and how long until something can change.
-- When time alone could change something for a mode; -1 for never.
local function left(mode)
  local till = -1
  if #s.holds > 0 then till = mode > 0 and index().first or index().last end
  if s.delay > now then till = math.max(till, s.delay) end
  return till < 0 and till or math.max(0, till - now)
end

-- Nobody, if somebody deleted that part of the queue: it begins anew with the next promotion.
local function ahead(req)
  if s.unreachable == 0 then return call('ZRANK', s.Q, req) or 0 end
  local since = tonumber(call('ZSCORE', s.Q, req) or 0) % @UNREACHABLE
  return call('ZCOUNT', s.Q, '-inf', string.format('(%.0f', since))
    + call('ZCOUNT', s.Q, @UNREACHABLE, string.format('(%.0f', since + @UNREACHABLE))
end
