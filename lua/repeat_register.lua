-- repeat_register.lua: have a payload enqueued again and again, in a fixed distance.
--
-- KEYS[1] repeat  zset  names of schedules, scored by their next time in ms; inf while switched off
-- KEYS[2] record  hash  what is known of this one
--
-- ARGV[1] name
-- ARGV[2] every_ms  distance of two times
-- ARGV[3] template  payload of each job
-- ARGV[4] first_ms  ms since 1970 of the first time
--
-- Returns 1 when it is registered, 0 when the name is taken; then nothing is changed.

local schedules, record = KEYS[1], KEYS[2]
local name, every_ms, template, first_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

redis.call('ZCARD', schedules)
if redis.call('EXISTS', record) == 1 then
  return 0
end
redis.call('HSET', record, 'every_ms', every_ms, 'template', template)
redis.call('ZADD', schedules, first_ms, name)
return 1
