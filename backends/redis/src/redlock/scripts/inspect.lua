-- KEYS H of each. Answers the time, and for each the record and the queue: req, ticket, deadline,
-- '1' if it keeps others out, since and who.
local call = redis.call
--@now
local answers = {now}
for i, H in ipairs(KEYS) do
  local value = call('GET', H)
  local queue = {}
  -- A queue may be left of a record that was deleted by hand; the next move drops it.
  if value and #value > 20 and struct.unpack('<I4', value, 18) > 0 then
    for _, req in ipairs(call('ZRANGE', H .. ':l', 0, -1)) do
      queue[#queue + 1] = {req, call('ZSCORE', H .. ':l', req), call('ZSCORE', H .. ':d', req) or '0',
        call('ZSCORE', H .. ':b', req) and '1' or '0', call('HGET', H .. ':w', req) or ''}
    end
  end
  answers[i + 1] = {value or '', queue}
end
return answers
