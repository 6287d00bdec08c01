-- progress.lua: note how far a held job has come, and publish it.
--
-- KEYS[1] active  zset     leased ids, scored by lease expiry in ms
-- KEYS[2] job     hash     the row
-- KEYS[3] events  channel  JSON objects with event, job and progress
--
-- ARGV[1] id     job id
-- ARGV[2] token  the number that claim handed out
-- ARGV[3] value  text
--
-- Returns 1.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQGONE when the row is gone.

local active, job, events = KEYS[1], KEYS[2], KEYS[3]
local id, token, value = ARGV[1], ARGV[2], ARGV[3]

local attempts = redis.pcall('HGET', job, 'attempts')
if type(attempts) ~= 'string' then
  return redis.error_reply('EMQGONE progress job gone')
end
if attempts ~= token then
  return redis.error_reply(
    'EMQSTALE progress token mismatch (yours ' .. token .. ', row ' .. attempts .. ')')
end
if not redis.call('ZSCORE', active, id) then
  return redis.error_reply(
    'EMQSTALE progress not held (yours ' .. token .. ', row ' .. attempts .. ')')
end
redis.call('HSET', job, 'progress', value)
redis.call('PUBLISH', events, cjson.encode({event = 'progress', job = id, progress = value}))
return 1
