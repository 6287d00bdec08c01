-- pause.lua: stop all claims of a queue; admission and running jobs go on.
--
-- KEYS[1] meta   hash    paused (since when, in ms), paused_by, paused_why
-- KEYS[2] trail  stream  what happened; capped
--
-- ARGV[1] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[2] by         who pauses, for people
-- ARGV[3] why        for people
--
-- Returns 1 when the queue was open, 0 when it was paused before; then nothing is changed.

local meta, trail = KEYS[1], KEYS[2]
local trail_max, by, why = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('HGET', meta, 'paused') then
  return 0
end
redis.call('HDEL', meta, 'paused_by', 'paused_why')  -- so that a full server lets this pass
redis.call('HSET', meta, 'paused', now, 'paused_by', by, 'paused_why', why)
if trail_max > 0 then
  redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*',
    'event', 'paused', 'by', by, 'note', why)
end
return 1
