-- log.lua: append a line to the log of a held job.
--
-- KEYS[1] active  zset  leased ids, scored by lease expiry in ms
-- KEYS[2] job     hash  the row
-- KEYS[3] logs    list  the lines
--
-- ARGV[1] id     job id
-- ARGV[2] token  the number that claim handed out
-- ARGV[3] line   text
-- ARGV[4] keep   how many lines are kept, the newest
--
-- Returns how many lines there are.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQGONE when the row is gone.

local active, job, logs = KEYS[1], KEYS[2], KEYS[3]
local id, token, line, keep = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local attempts = redis.pcall('HGET', job, 'attempts')
if type(attempts) ~= 'string' then
  return redis.error_reply('EMQGONE log job gone')
end
if attempts ~= token then
  return redis.error_reply(
    'EMQSTALE log token mismatch (yours ' .. token .. ', row ' .. attempts .. ')')
end
if not redis.call('ZSCORE', active, id) then
  return redis.error_reply(
    'EMQSTALE log not held (yours ' .. token .. ', row ' .. attempts .. ')')
end
redis.call('LLEN', logs)
redis.call('HSET', job, 'ties', '1')
redis.call('RPUSH', logs, line)
redis.call('LTRIM', logs, -keep, -1)
return redis.call('LLEN', logs)
