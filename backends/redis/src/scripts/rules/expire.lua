-- What has ended is dropped; a waiter whose promotion ended unconfirmed is back in its place.
local function drop_ended()
  s.stirred = s.delay > 0
  local live = {}
  for _, h in ipairs(s.holds) do
    if h.expires > now then
      live[#live + 1] = h
    elseif h.phase == @CLAIMED then
      if h.deadline > now then join(h.req, h.claim, h.since, h.deadline) end
    elseif h.phase ~= @LINGERING and h.claim.after > 0 then
      s.delay = math.max(s.delay, h.expires + h.claim.after)
    end
  end
  s.stirred = s.stirred or #live < #s.holds
  if #live < #s.holds then s.index = nil end
  s.holds = live
  if s.queued == 0 or s.soonest > now then return end
  s.stirred = true
  if s.queue_kept <= now then return no_queue() end -- every deadline in it is past
  for _, req in ipairs(call('ZRANGEBYSCORE', s.D, '-inf', now, 'LIMIT', 0, @STEP)) do quit(req) end
  if s.queued > 0 then s.soonest = tonumber(call('ZRANGE', s.D, 0, 0, 'WITHSCORES')[2] or 0) end
end
