-- log.lua: append lines to the logs of held jobs.
--
-- KEYS[1] active  zset  leased ids, scored by lease expiry in ms
--
-- ARGV[1]  jobs     prefix of the rows, and of the lists of their lines
-- ARGV[2]  keep     how many lines of a job are kept, the newest
-- ARGV[3…] a line:  id, token, text; a job may have several
--
-- Returns one verdict a line: how many lines the job has.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQCANCEL when it is not since the job was cancelled: so its run is told;
--         EMQGONE when the row is gone.

local active, jobs, keep = KEYS[1], ARGV[1], tonumber(ARGV[2])

-- Read and decide.
redis.call('ZCARD', active)
local verdicts = {}
for at = 3, #ARGV, 3 do
  local id, token = ARGV[at], ARGV[at + 1]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'settled')
  local verdict = 1
  if row.err or not row[1] then
    verdict = redis.error_reply('EMQGONE log job gone')
  elseif row[1] ~= token and row[2] == 'cancel' then
    verdict = redis.error_reply(
      'EMQCANCEL log cancelled (yours ' .. token .. ', row ' .. row[1] .. ')')
  elseif row[1] ~= token then
    verdict = redis.error_reply(
      'EMQSTALE log token mismatch (yours ' .. token .. ', row ' .. row[1] .. ')')
  elseif not redis.call('ZSCORE', active, id) then
    verdict = redis.error_reply(
      'EMQSTALE log not held (yours ' .. token .. ', row ' .. row[1] .. ')')
  else
    redis.call('LLEN', jobs .. id .. ':logs')
  end
  verdicts[#verdicts + 1] = verdict
end

-- Write.
for i, verdict in ipairs(verdicts) do
  if verdict == 1 then
    local id = ARGV[3 * i]
    local logs = jobs .. id .. ':logs'
    redis.call('HSET', jobs .. id, 'ties', '1')
    local count = redis.call('RPUSH', logs, ARGV[3 * i + 2])
    if count > keep then
      redis.call('LTRIM', logs, -keep, -1)
    end
    verdicts[i] = math.min(count, keep)
  end
end
return verdicts
