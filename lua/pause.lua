-- pause.lua: stop all claims of a queue; admission and running jobs go on.
--
-- KEYS[1] meta  hash  paused and paused_by
--
-- ARGV[1] by  who pauses, for people
--
-- Returns 1.

local meta = KEYS[1]
local by = ARGV[1]

redis.call('HSET', meta, 'paused', '1', 'paused_by', by)
return 1
