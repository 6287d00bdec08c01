-- beat.lua: let a worker say that it is there, and hear what it is asked to do.
--
-- KEYS[1] workers  zset    worker ids by their last beat in ms
-- KEYS[2] worker   hash    what this worker says of itself
-- KEYS[3] word     string  what an operator asks it to do, as control has left it
--
-- ARGV[1] id      of the worker
-- ARGV[2] ttl_ms  how long the word holds; 0 signs the worker off
-- ARGV[3…]        fields and values
--
-- Returns the word and who left it, separated by a space; '' when there is none. It stays until
-- its time is up: an answer that is lost is not the last one.
--
-- Workers whose own word ran out a day ago are dropped from the list.

local workers, worker, word = KEYS[1], KEYS[2], KEYS[3]
local id, ttl_ms = ARGV[1], tonumber(ARGV[2])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZCARD', workers)
local asked = redis.pcall('GET', word)
redis.call('DEL', worker)
if ttl_ms == 0 then
  redis.call('DEL', word)
  redis.call('ZREM', workers, id)
else
  redis.call('HSET', worker, 'beat_at', now, unpack(ARGV, 3))
  redis.call('PEXPIRE', worker, ttl_ms)
  redis.call('ZADD', workers, now, id)
end
redis.call('ZREMRANGEBYSCORE', workers, '-inf', now - 86400000)
return type(asked) == 'string' and asked or ''
