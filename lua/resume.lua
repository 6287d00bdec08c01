-- resume.lua: let a queue be claimed again, and wake a worker.
--
-- KEYS[1] meta  hash  paused and paused_by
-- KEYS[2] wake  list  readiness tokens
--
-- Returns 1 when the queue was paused, 0 when it was not.

local meta, wake = KEYS[1], KEYS[2]

local awake = redis.call('LLEN', wake)
local paused = redis.call('HDEL', meta, 'paused', 'paused_by')
if awake == 0 then
  redis.call('LPUSH', wake, '1')
end
return math.min(paused, 1)
