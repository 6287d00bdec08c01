-- complete.lua: retire jobs that the caller still holds.
--
-- KEYS[1] active   zset    leased ids, scored by lease expiry in ms
-- KEYS[2] pending  zset    ids ready to run, scored by -priority
-- KEYS[3] done     zset    finished ids whose row is kept, scored by the end of its time in ms
-- KEYS[4] metrics  hash    counters; metrics:<minute> stands beside it
-- KEYS[5] trail    stream  what happened; capped
--
-- ARGV[1]  jobs       prefix of the rows
-- ARGV[2]  trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[3]  trail_all  the same for jobs that end well
-- ARGV[4]  keep_ms    how long the rows are kept with their results; 0 deletes them
-- ARGV[5…] a job:     id, token (the number that claim handed out), result ('' for none)
--
-- Returns one verdict a job: 1 retired (also when this token has retired it before),
--         0 when its row is gone.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it.
--
-- A lease that lapsed and was swept, but was not claimed again, may still be completed: the
-- work is done, and the id leaves pending in this step.
--
-- A row with the field 'ties' has something beside it that its end concerns (log lines, who waits
-- for it); all other rows pay for no look at such things.

local active, pending, done, metrics, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local jobs, trail_max, trail_all = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local keep_ms = tonumber(ARGV[4])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function tally(name, n)
  if n > 0 then
    local minute = metrics .. ':' .. math.floor(now / 60000)
    redis.pcall('HINCRBY', metrics, name, n)
    redis.pcall('HINCRBY', minute, name, n)
    redis.pcall('EXPIRE', minute, 172800)
  end
end

local function note(event, id, token, text, yours)
  if trail_max > 0 then
    if #text > 200 then  -- and no half of a character at the end
      text = string.gsub(string.sub(text, 1, 200), '[\192-\255][\128-\191]*$', '')
    end
    redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*', 'event', event, 'id', id,
      'token', token, 'note', text, 'yours', yours or '')
  end
end

-- Those who wait for the end of a job are told: each has a list of its own, which soon goes.
local function tell(id, word)
  local waiters = redis.pcall('HGET', jobs .. id, 'waiters')
  if type(waiters) == 'string' then
    redis.call('HDEL', jobs .. id, 'waiters')
    for waiter in string.gmatch(waiters, '%w+') do
      local list = string.sub(jobs, 1, -5) .. 'waiter:' .. waiter
      redis.pcall('RPUSH', list, word)
      redis.pcall('PEXPIRE', list, 60000)
    end
  end
end

local ids = {}
for at = 5, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local leases = redis.call('ZMSCORE', active, unpack(ids))
redis.call('ZCARD', pending)
redis.call('ZCARD', done)

-- Read and decide.
local verdicts, held, swept, finished, seen = {}, {}, {}, {}, {}
local refused, tied = {}, {}
for i, id in ipairs(ids) do
  local token = ARGV[3 * i + 3]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'settled', 'ties')
  local reason
  if row.err or not row[1] then
    verdicts[i] = 0
  elseif row[1] ~= token or token == '0' then
    reason = 'token mismatch'
  elseif row[2] then
    if row[2] == 'complete' then
      verdicts[i] = 1
    else
      reason = 'not held, settled before by ' .. row[2]
    end
  elseif seen[id] then
    verdicts[i] = 1
  elseif leases[i] then
    held[#held + 1] = id
  elseif redis.call('ZSCORE', pending, id) then
    swept[#swept + 1] = id
  else
    reason = 'not held'
  end
  if reason then
    refused[#refused + 1] = {id, row[1], reason, token}
    verdicts[i] = redis.error_reply(
      'EMQSTALE complete ' .. reason .. ' (yours ' .. token .. ', row ' .. row[1] .. ')')
  elseif not verdicts[i] then
    verdicts[i] = 1
    seen[id] = true
    finished[#finished + 1] = i
    if row[3] then
      tied[#tied + 1] = id
    end
  end
end

-- Write.
if #held > 0 then
  redis.call('ZREM', active, unpack(held))
end
if #swept > 0 then
  redis.call('ZREM', pending, unpack(swept))
end
for _, id in ipairs(tied) do
  tell(id, 'done')
end
if keep_ms > 0 then
  local kept = {}
  for _, i in ipairs(finished) do
    redis.call('HSET', jobs .. ids[i], 'state', 'done', 'settled', 'complete',
      'finished_at', now, 'result', ARGV[3 * i + 4])
    kept[#kept + 1] = now + keep_ms
    kept[#kept + 1] = ids[i]
  end
  if #kept > 0 then
    redis.call('ZADD', done, unpack(kept))
  end
elseif #finished > 0 then
  local rows = {}
  for _, i in ipairs(finished) do
    rows[#rows + 1] = jobs .. ids[i]
  end
  for _, id in ipairs(tied) do
    rows[#rows + 1] = jobs .. id .. ':logs'
  end
  redis.call('DEL', unpack(rows))
end
tally('completed', #finished)
tally('stale', #refused)
for _, refusal in ipairs(refused) do
  note('refused', refusal[1], refusal[2], 'complete ' .. refusal[3], refusal[4])
end
if trail_all > 0 then
  for _, i in ipairs(finished) do
    note('completed', ids[i], ARGV[3 * i + 3], '')
  end
end
return verdicts
