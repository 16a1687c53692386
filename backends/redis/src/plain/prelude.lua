-- KEYS 1 the recipe's key; ours beside it: 2 fence counter, 3 info hash, 4 queue of waiters, 5 cancelled requests
-- info: v the holder's value, o owner, l label, t token, g granted (us), m min_hold (us), c channel,
--       r values of the last requests that were given back, newest last
local T = redis.call('TIME')
local us = T[1] * 1000000 + T[2]
local function I(n) return string.format('%.0f', n) end
local function given_back(r, value) return r and string.find(r, value, 1, true) end
local function remember(r, value) return string.sub((r or '') .. value, -32 * 8) end
local function cancelled(value)
  local till = redis.call('ZSCORE', KEYS[5], value)
  return till and tonumber(till) > us
end
local function cancel(value)
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', I(us))
  redis.call('ZADD', KEYS[5], I(us + 60000000), value)
  redis.call('PEXPIRE', KEYS[5], 120000)
end
-- A waiter is its value and its client's channel.
local function leave(value, channel) redis.call('ZREM', KEYS[4], value .. channel) end
-- Tells the first who listens; it stays in the queue until it is granted, since others may be quicker. Of
-- those who do not listen at most a thousand are dropped: who waits also asks by itself.
local function wake()
  for _ = 1, 1000 do
    local w = redis.call('ZRANGE', KEYS[4], 0, 0)[1]
    if not w or redis.call('PUBLISH', string.sub(w, 33), 't' .. string.sub(w, 1, 32)) > 0 then return end
    redis.call('ZREM', KEYS[4], w)
  end
end
