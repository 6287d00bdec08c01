-- repeat_cancel.lua: forget a schedule. Jobs that it has enqueued stay.
--
-- KEYS[1] repeat  zset  names of schedules, scored by their next time in ms
-- KEYS[2] record  hash  what is known of this one
--
-- ARGV[1] name
--
-- Returns 1 when it was there, else 0.

local schedules, record = KEYS[1], KEYS[2]
local name = ARGV[1]

local there = redis.call('ZREM', schedules, name)
return math.max(there, redis.call('DEL', record))
