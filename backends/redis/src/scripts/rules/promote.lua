-- Promotes waiters: compatible mode, queue order, and a channel with a subscriber.
-- The hold that lets a claim in as a re-entry.
local function joins(c)
  return #s.holds > 0 and index().held[crowd(c)]
end

local function fits(mode)
  if #s.holds == 0 then return true end
  local x = index()
  return mode ~= 0 and not x.mixed and x.mode == mode and (mode < 0 or x.n < mode)
end

local function tokens_for(c)
  local h = joins(c)
  if h then return h.token, h.block end
  local token = math.max(s.hi + 1, now)
  local block = math.min(c.block, math.max(1, now + @AHEAD - token))
  s.hi = token + block - 1
  return token, block
end

local function grant(req, c, phase, till, since, deadline)
  local token, block = tokens_for(c)
  local h = {req = req, phase = phase, expires = till, granted = now, token = token, block = block,
    since = since, deadline = deadline, claim = c}
  s.holds[#s.holds + 1] = h
  if s.index then count(s.index, h) end
  return h
end

-- Whether nobody listens to a channel if PUBLISH counts nobody: to all ('1'), to none ('0'), or to
-- those with this ending, because in a cluster it counts the listeners at this server only.
local function counted(via)
  return s.trusted == '1' or s.trusted ~= '0' and string.sub(via, -#s.trusted) == s.trusted
end

-- Whether a promoted waiter hears of it. The request that asks learns it from the answer.
local function reached(req, via)
  if req == s.own or via == '' then return true end
  if s.silent[via] then return false end
  if call('PUBLISH', via, 't' .. req .. s.H) > 0 or not counted(via) then return true end
  s.silent[via] = true
  return false
end

-- The first in the queue whose owner holds the lock already. Who holds it does not change while waiters
-- are promoted: `p` has how many of them there are, and how many of the queue were looked at.
local function first_again(p)
  if not p.owners then
    p.owners, p.n, p.from = {}, 0, 0
    for k in pairs(#s.holds > 0 and index().held or {}) do
      local n = tonumber(call('HGET', s.W, k) or 0)
      p.owners[k] = n > 0
      p.n = p.n + n
    end
  end
  while p.n > 0 and p.from < s.queued - s.unreachable do
    local some = call('ZRANGE', s.Q, p.from, math.min(p.from + 100, s.queued - s.unreachable) - 1)
    if #some == 0 then return end
    for _, req in ipairs(some) do
      local blob = call('HGET', s.W, req)
      local c = blob and claim(blob)
      if c and p.owners[crowd(c)] then
        p.n = p.n - 1 -- it leaves its place, whatever becomes of it
        return req, c, tonumber(call('ZSCORE', s.Q, req))
      end
      p.from = p.from + 1
    end
  end
end

local function first_in_queue()
  if s.delay > now then return end
  if #s.holds > 0 and index().exclusive then return end
  local head = call('ZRANGE', s.Q, 0, 0, 'WITHSCORES')
  local req = head[1]
  local blob = req and call('HGET', s.W, req)
  if not blob then return no_queue() end -- somebody deleted some of our keys: begin anew
  local c = claim(blob)
  if fits(c.mode) then return req, c, tonumber(head[2]) end
end

-- Grants the head while it fits. A waiter that cannot be told keeps its place, passed over until it
-- is heard of; its tokens are used up, as if it had held for a moment.
local function promote()
  local p = {}
  for _ = 1, @STEP do
    if s.queued == s.unreachable then return end
    local req, c, since = first_again(p)
    if not req then req, c, since = first_in_queue() end
    if not req then return end
    local deadline = tonumber(call('ZSCORE', s.D, req) or 0)
    if deadline <= now then
      strike(req, c, false)
    elseif reached(req, c.via) then
      strike(req, c, false)
      grant(req, c, @CLAIMED, now + math.min(@CLAIM, c.ttl), since, deadline)
    else
      tokens_for(c)
      call('ZADD', s.Q, since + @UNREACHABLE, req)
      less(crowd(c))
      s.unreachable = s.unreachable + 1
    end
  end
  s.soonest = 0 -- so that the next move goes on
end

local function settle()
  if s.stirred then promote() end
end
