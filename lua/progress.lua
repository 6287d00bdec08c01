-- progress.lua: note how far held jobs have come, and publish it.
--
-- KEYS[1] active  zset     leased ids, scored by lease expiry in ms
-- KEYS[2] events  channel  JSON objects with event, job and progress
--
-- ARGV[1]  jobs    prefix of the rows
-- ARGV[2…] a job:  id, token, value (text)
--
-- Returns one verdict a job: 1 noted.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQCANCEL when it is not since the job was cancelled: so its run is told;
--         EMQGONE when the row is gone.

local active, events, jobs = KEYS[1], KEYS[2], ARGV[1]

-- Read and decide.
redis.call('ZCARD', active)
local verdicts = {}
for at = 2, #ARGV, 3 do
  local id, token = ARGV[at], ARGV[at + 1]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'settled')
  local verdict = 1
  if row.err or not row[1] then
    verdict = redis.error_reply('EMQGONE progress job gone')
  elseif row[1] ~= token and row[2] == 'cancel' then
    verdict = redis.error_reply(
      'EMQCANCEL progress cancelled (yours ' .. token .. ', row ' .. row[1] .. ')')
  elseif row[1] ~= token then
    verdict = redis.error_reply(
      'EMQSTALE progress token mismatch (yours ' .. token .. ', row ' .. row[1] .. ')')
  elseif not redis.call('ZSCORE', active, id) then
    verdict = redis.error_reply(
      'EMQSTALE progress not held (yours ' .. token .. ', row ' .. row[1] .. ')')
  end
  verdicts[#verdicts + 1] = verdict
end

-- Write.
for i, verdict in ipairs(verdicts) do
  if verdict == 1 then
    local id, value = ARGV[3 * i - 1], ARGV[3 * i + 1]
    redis.call('HSET', jobs .. id, 'progress', value)
    redis.call('PUBLISH', events, cjson.encode({event = 'progress', job = id, progress = value}))
  end
end
return verdicts
