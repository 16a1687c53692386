-- The rules of a lock: the translation of LockState::step, function by function.
--
-- The record (H) is one string: version, highest token, delay, queued, of those deaf, tombstones
-- until, record kept until, line kept until, oldest of the ring, number of holds, the ring of
-- released requests (req, until), then the holds (req, phase, expires, granted, token, block,
-- since, deadline, claim). A claim is ttl, min_hold, lock_delay, mode, block, owner, via, label.
-- The line is Q (req -> since, plus DEAF while passed over), D (req -> deadline) and W (req ->
-- claim, and counts); Z holds the tombstones (req -> until). Times are microseconds.
local HELD, CLAIMED, LINGERING, REVOKED = 0, 1, 2, 3
local SECOND, MINUTE, HOUR, DAY = 1000000, 60000000, 3600000000, 86400000000
local DEAF = 4000000000000000
local RING, STONES, STEP = 8, 4096, 1000
local H, Q, D, W, Z
local hi, delay, queued, deaf, stones, kept, line_kept, oldest, ring, holds
local own, trusted
local silent = {}

local function claim(blob)
  local c = {blob = blob}
  c.ttl, c.min, c.after, c.mode, c.block, c.owner, c.via = unpack('<dddi4I4ss', blob)
  return c
end

local function open(at, value)
  H, Q, D, W, Z = KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3], KEYS[at + 4]
  v = value
  hi, delay, queued, deaf, stones, kept, line_kept, oldest, ring, holds = 0, 0, 0, 0, 0, 0, 0, 0, '', {}
  if not v then return end
  if string.byte(v) ~= 1 then
    error(redis.error_reply('DLLAYOUT ' .. H .. ' was written by a newer distlock'))
  end
  local _, n, pos
  _, hi, delay, queued, deaf, stones, kept, line_kept, oldest, n, ring, pos = unpack('<BddI4I4ddddI4Bc0', v)
  for i = 1, n do
    local h, blob = {}, nil
    h.req, h.phase, h.expires, h.granted, h.token, h.block, h.since, h.deadline, blob, pos =
      unpack('<c16BdddI4ddHc0', v, pos)
    h.claim = claim(blob)
    holds[i] = h
  end
end

-- Writes the record if it has changed, with an end that is never near.
local function close()
  local parts, need = {''}, math.max(now, hi, stones)
  for _, h in ipairs(holds) do
    need = math.max(need, h.expires)
    parts[#parts + 1] = pack('<c16BdddI4ddH', h.req, h.phase, h.expires, h.granted, h.token, h.block, h.since,
      h.deadline, #h.claim.blob)
    parts[#parts + 1] = h.claim.blob
  end
  local fresh = kept < need + DAY
  if fresh then kept = need + DAY + HOUR end
  parts[1] = pack('<BddI4I4ddddI4Bc0', 1, hi, delay, queued, deaf, stones, kept, line_kept, oldest, #holds, #ring, ring)
  local s = table.concat(parts)
  if fresh then
    call('SET', H, s, 'PXAT', (kept - kept % 1000) / 1000)
  elseif s ~= v then
    call('SET', H, s, 'KEEPTTL')
  end
end

-- Where waiters in line who are not deaf are counted by owner and mode. Never as long as a request.
local function crowd(c)
  local k = 'o' .. c.mode .. ':' .. c.owner
  if #k == 16 then k = 'o' .. k end
  return k
end

local function less(field)
  if call('HINCRBY', W, field, -1) <= 0 then call('HDEL', W, field) end
end

local function keep_line(till)
  line_kept = till + HOUR
  local at = (line_kept - line_kept % 1000) / 1000
  call('PEXPIREAT', Q, at)
  call('PEXPIREAT', D, at)
  call('PEXPIREAT', W, at)
end

local function join(req, c, since, deadline, unheard)
  call('ZADD', Q, unheard and since + DEAF or since, req)
  call('ZADD', D, deadline, req)
  call('HSET', W, req, c.blob)
  if unheard then deaf = deaf + 1 else call('HINCRBY', W, crowd(c), 1) end
  if c.mode > 0 then
    call('HINCRBY', W, 'p', 1)
    call('HSET', W, 'n', c.mode)
  end
  if queued == 0 or deadline > line_kept then keep_line(deadline) end
  queued = queued + 1
end

local function no_line()
  call('DEL', Q, D, W)
  queued, deaf = 0, 0
end

local function strike(req, c, unheard)
  if queued == 1 then return no_line() end
  call('ZREM', Q, req)
  call('ZREM', D, req)
  call('HDEL', W, req)
  if unheard then deaf = deaf - 1 else less(crowd(c)) end
  if c.mode > 0 then less('p') end
  queued = queued - 1
end

-- Takes a request out of the line, if it is in it.
local function quit(req)
  local blob = queued > 0 and call('HGET', W, req)
  if not blob then return false end
  strike(req, claim(blob), tonumber(call('ZSCORE', Q, req) or 0) >= DEAF)
  return true
end

local function drop_ended()
  local live = {}
  for _, h in ipairs(holds) do
    if h.expires > now then
      live[#live + 1] = h
    elseif h.phase == CLAIMED then
      if h.deadline > now then join(h.req, h.claim, h.since, h.deadline, true) end
    elseif h.phase ~= LINGERING and h.claim.after > 0 then
      delay = math.max(delay, h.expires + h.claim.after)
    end
  end
  holds = live
  if queued == 0 then return end
  if line_kept <= now then return no_line() end -- every deadline in it is past
  for _, req in ipairs(call('ZRANGEBYSCORE', D, '-inf', now, 'LIMIT', 0, STEP)) do quit(req) end
end

local function hold_of(req)
  for i, h in ipairs(holds) do
    if h.req == req then return h, i end
  end
end

-- The same claim, reachable elsewhere.
local function reachable(c, via)
  local head = 32 + #c.owner + 1
  return claim(string.sub(c.blob, 1, head) .. via .. string.sub(c.blob, head + #c.via + 1))
end

local function hear(req, wait, via)
  local blob = queued > 0 and call('HGET', W, req)
  if blob then
    local c = claim(blob)
    if c.via ~= via then
      c = reachable(c, via)
      call('HSET', W, req, c.blob)
    end
    call('ZADD', D, 'GT', now + wait, req)
    if now + wait > line_kept then keep_line(now + wait) end
    if deaf > 0 then
      local since = tonumber(call('ZSCORE', Q, req) or 0)
      if since >= DEAF then
        call('ZADD', Q, since - DEAF, req)
        call('HINCRBY', W, crowd(c), 1)
        deaf = deaf - 1
      end
    end
    return c
  end
  local h = hold_of(req)
  if h and h.phase == CLAIMED then
    h.deadline = math.max(h.deadline, now + wait)
    if h.claim.via ~= via then h.claim = reachable(h.claim, via) end
  end
end

-- The hold that lets a claim in as a re-entry.
local function joins(c)
  for _, h in ipairs(holds) do
    if h.phase == HELD and h.claim.mode == c.mode and h.claim.owner == c.owner then return h end
  end
end

local function fits(mode)
  if mode == 0 then return #holds == 0 end
  local tokens, n = {}, 0
  for _, h in ipairs(holds) do
    if h.claim.mode ~= mode then return false end
    if not tokens[h.token] then
      tokens[h.token] = true
      n = n + 1
    end
  end
  return mode < 0 or n < mode
end

local function tokens_for(c)
  local h = joins(c)
  if h then return h.token, h.block end
  local token = math.max(hi + 1, now)
  local block = math.min(c.block, math.max(1, now + SECOND - token))
  hi = token + block - 1
  return token, block
end

local function grant(req, c, phase, till, since, deadline)
  local token, block = tokens_for(c)
  local h = {req = req, phase = phase, expires = till, granted = now, token = token, block = block,
    since = since, deadline = deadline, claim = c}
  holds[#holds + 1] = h
  return h
end

-- Whether nobody listens to a channel if PUBLISH counts nobody: to all ('1'), to none ('0'), or to
-- those with this ending, because in a cluster it counts only who listens at this server.
local function counted(via)
  return trusted == '1' or trusted ~= '0' and string.sub(via, -#trusted) == trusted
end

-- Whether a promoted waiter hears of it. The one who asks learns it from the answer.
local function reached(req, via)
  if req == own or via == '' then return true end
  if silent[via] then return false end
  if call('PUBLISH', via, 't' .. req .. H) > 0 or not counted(via) then return true end
  silent[via] = true
  return false
end

-- The first in line whose owner holds the lock already.
local function first_again()
  local owners, any = {}, false
  for _, h in ipairs(holds) do
    if h.phase == HELD then
      local k = crowd(h.claim)
      if owners[k] == nil then
        owners[k] = call('HEXISTS', W, k) == 1
        any = any or owners[k]
      end
    end
  end
  local from = 0
  while any and from < queued - deaf do
    for _, req in ipairs(call('ZRANGE', Q, from, math.min(from + 100, queued - deaf) - 1)) do
      local blob = call('HGET', W, req)
      local c = blob and claim(blob)
      if c and owners[crowd(c)] then return req, c end
    end
    from = from + 100
  end
end

local function first_in_line()
  if delay > now then return end
  for _, h in ipairs(holds) do
    if h.claim.mode == 0 then return end
  end
  local req = call('ZRANGE', Q, 0, 0)[1]
  local blob = req and call('HGET', W, req)
  if not blob then return no_line() end -- somebody deleted some of our keys: begin anew
  local c = claim(blob)
  if fits(c.mode) then return req, c end
end

-- Grants the head while it fits. A waiter who cannot be told keeps its place, passed over until it
-- is heard of; its tokens are used up, as if it had held for a moment.
local function promote()
  local tries = 0
  while queued > deaf and tries < STEP do
    tries = tries + 1
    local req, c = first_again()
    if not req then req, c = first_in_line() end
    if not req then return end
    local since, deadline = tonumber(call('ZSCORE', Q, req)), tonumber(call('ZSCORE', D, req) or 0)
    if deadline <= now then
      strike(req, c, false)
    elseif reached(req, c.via) then
      strike(req, c, false)
      grant(req, c, CLAIMED, now + math.min(SECOND, c.ttl), since, deadline)
    else
      tokens_for(c)
      call('ZADD', Q, since + DEAF, req)
      less(crowd(c))
      deaf = deaf + 1
    end
  end
end

-- How a request ended: 0 released, 1 cancelled; nothing while it has not.
local function ended(req)
  if string.find(ring, req, 1, true) then
    for i = 1, #ring, 24 do
      local r, till = unpack('<c16d', ring, i)
      if r == req and till > now then return 0, till end
    end
  end
  local till = stones > now and call('ZSCORE', Z, req)
  if till and tonumber(till) > now then return 1, tonumber(till) end
end

-- Remembers that a request has ended. How it ended first stays.
local function spend(req, how, from)
  local till = from + MINUTE
  local before, old = ended(req)
  if before then how, till = before, math.max(till, old) end
  if how == 1 then
    stones = math.max(stones, till)
    call('ZREMRANGEBYSCORE', Z, '-inf', now)
    call('ZADD', Z, till, req)
    call('ZREMRANGEBYRANK', Z, 0, -STONES - 1)
    call('PEXPIREAT', Z, (stones - stones % 1000) / 1000 + 60000)
    return
  end
  local still = {}
  oldest = till
  for i = 1, #ring, 24 do
    local r, u = unpack('<c16d', ring, i)
    if u > now and r ~= req then
      still[#still + 1] = string.sub(ring, i, i + 23)
      oldest = math.min(oldest, u)
    end
  end
  if #still == RING then table.remove(still, 1) end
  still[#still + 1] = pack('<c16d', req, till)
  ring = table.concat(still)
end

local function cancel(req)
  quit(req)
  local h, i = hold_of(req)
  if h and h.phase ~= LINGERING then table.remove(holds, i) end
  spend(req, 1, now)
  promote()
end

-- When time alone could change something for a mode; -1 for never.
local function left(mode)
  local till = -1
  for _, h in ipairs(holds) do
    if till < 0 then
      till = h.expires
    elseif mode > 0 then
      till = math.min(till, h.expires)
    else
      till = math.max(till, h.expires)
    end
  end
  if delay > now then till = math.max(till, delay) end
  return till < 0 and till or math.max(0, till - now)
end

local function ahead(req)
  if deaf == 0 then return call('ZRANK', Q, req) end
  local since = tonumber(call('ZSCORE', Q, req)) % DEAF
  return call('ZCOUNT', Q, '-inf', string.format('(%.0f', since))
    + call('ZCOUNT', Q, DEAF, string.format('(%.0f', since + DEAF))
end
