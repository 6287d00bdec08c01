-- update.lua: replace the payload of a job that is still to run.
--
-- KEYS[1] active  zset    leased ids
-- KEYS[2] done    zset    finished ids whose row is kept
-- KEYS[3] job     hash    the row
-- KEYS[4] trail   stream  what happened; capped
--
-- ARGV[1] id         job id
-- ARGV[2] payload    the new one
-- ARGV[3] by         who asks, for the trail
-- ARGV[4] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[5] was        SHA-1 of the payload that is replaced, in hex; '' for any
--
-- Returns 1.
-- Errors  EMQGONE when the row is gone; EMQLOCK when a worker holds the job: it has read the
--         payload already; EMQSTATE when the job is done, or another payload than `was` is there.

local active, done, job, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, payload, by, trail_max, was = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]

local token = redis.pcall('HGET', job, 'attempts')
if type(token) ~= 'string' then
  return redis.error_reply('EMQGONE update job gone')
end
if redis.call('ZSCORE', active, id) then
  return redis.error_reply('EMQLOCK job is held by a worker')
end
if redis.call('ZSCORE', done, id) then
  return redis.error_reply('EMQSTATE done: it will not run again')
end
if was ~= '' and redis.sha1hex(redis.call('HGET', job, 'payload') or '') ~= was then
  return redis.error_reply('EMQSTATE its payload has been changed since it was read')
end
redis.call('HSET', job, 'payload', payload)
if token ~= '0' then
  -- Who held the job before, and may still run it, has read the old payload.
  redis.call('HSETNX', job, 'settled', 'update')
end
if trail_max > 0 then
  redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*',
    'event', 'updated', 'id', id, 'token', token, 'by', by)
end
return 1
