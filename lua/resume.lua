-- resume.lua: let a queue be claimed again, and wake a worker.
--
-- KEYS[1] meta   hash    paused, paused_by and paused_why
-- KEYS[2] wake   list    readiness tokens
-- KEYS[3] trail  stream  what happened; capped
--
-- ARGV[1] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[2] by         who resumes, for people
--
-- Returns 1 when the queue was paused, 0 when it was not.

local meta, wake, trail = KEYS[1], KEYS[2], KEYS[3]
local trail_max, by = tonumber(ARGV[1]), ARGV[2]

local awake = redis.call('LLEN', wake)
local paused = math.min(redis.call('HDEL', meta, 'paused', 'paused_by', 'paused_why'), 1)
if awake == 0 then
  redis.call('LPUSH', wake, '1')
end
if paused == 1 and trail_max > 0 then
  redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*', 'event', 'resumed', 'by', by)
end
return paused
