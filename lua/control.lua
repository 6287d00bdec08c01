-- control.lua: leave a word for a worker, which finds it at its next beat.
--
-- KEYS[1] worker  hash    what the worker says of itself
-- KEYS[2] word    string  what it is asked to do, and by whom
--
-- ARGV[1] word    quiet, resume or stop
-- ARGV[2] by      who asks
-- ARGV[3] ttl_ms  how long the word waits to be found
--
-- Returns 1 when the word is left, in the place of an earlier one; 0 when there is no such
-- worker.

local worker, word = KEYS[1], KEYS[2]
local asked, by, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

if redis.call('EXISTS', worker) == 0 then
  return 0
end
redis.call('DEL', word)  -- a first write that needs no memory: a full server takes the next one
redis.call('SET', word, asked .. ' ' .. by, 'PX', ttl_ms)
return 1
