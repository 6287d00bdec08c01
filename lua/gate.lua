-- gate.lua: ask whether the queue is at its concurrency limit.
--
-- KEYS[1] meta    hash  concurrency, the most jobs that may be held at once
-- KEYS[2] active  zset  leased ids, scored by lease expiry in ms
--
-- Returns 0 when there is room, or no limit.
-- Errors  EMQRATE when there is none.
--
-- Advice only: claim checks the same limit for itself.

local meta, active = KEYS[1], KEYS[2]

local concurrency = tonumber(redis.call('HGET', meta, 'concurrency') or '0') or 0
if concurrency > 0 and redis.call('ZCARD', active) >= concurrency then
  return redis.error_reply('EMQRATE at concurrency ceiling')
end
return 0
