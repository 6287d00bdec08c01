-- bury.lua: put held jobs into the morgue at once, as the task asked.
--
-- KEYS[1] active   zset    leased ids, scored by lease expiry in ms
-- KEYS[2] dead     zset    the morgue, scored by time of death in ms
-- KEYS[3] metrics  hash    counters; metrics:<minute> stands beside it
-- KEYS[4] trail    stream  what happened; capped
--
-- ARGV[1]  jobs       prefix of the rows
-- ARGV[2]  trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[3]  dead_max   how many dead jobs are kept; the oldest go first
-- ARGV[4…] a job:     id, token, reason, traceback
--
-- Returns one verdict a job: 1 buried (also when this token has buried it before).
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQGONE when the row is gone.

local active, dead, metrics, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local jobs, trail_max, dead_max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

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

-- The morgue's cap holds at once, not only after the next sweep: the oldest go, with their rows.
local function keep_cap()
  local over = math.min(redis.call('ZCARD', dead) - dead_max, 500)
  if over > 0 then
    local rows = {}
    for _, id in ipairs(redis.call('ZRANGE', dead, 0, over - 1)) do
      rows[#rows + 1] = jobs .. id
      rows[#rows + 1] = jobs .. id .. ':logs'
    end
    redis.call('ZREMRANGEBYRANK', dead, 0, over - 1)
    redis.call('DEL', unpack(rows))
    tally('trimmed', over)
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

-- The errors so far and one more, as a line of JSON, for rows that keep them: the newest ones.
local function errors_with(kept, message, traceback)
  kept = kept .. cjson.encode({'bury', message, traceback}) .. '\n'
  while #kept > 65536 do
    local rest = string.sub(kept, string.find(kept, '\n', 1, true) + 1)
    if rest == '' then
      break
    end
    kept = rest
  end
  return kept
end

local ids = {}
for at = 4, #ARGV, 4 do
  ids[#ids + 1] = ARGV[at]
end
local leases = redis.call('ZMSCORE', active, unpack(ids))

-- Read and decide.
local verdicts, moves, seen, refused = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local at = 4 + 4 * (i - 1)
  local token = ARGV[at + 1]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'settled', 'errors')
  local reason
  if row.err or not row[1] then
    verdicts[i] = redis.error_reply('EMQGONE bury job gone')
  elseif row[1] ~= token then
    reason = 'token mismatch'
  elseif row[2] == 'bury' or seen[id] then
    verdicts[i] = 1
  elseif not leases[i] then
    reason = row[2] and 'not held, settled before by ' .. row[2] or 'not held'
  else
    seen[id] = true
    verdicts[i] = 1
    moves[#moves + 1] = {id, ARGV[at + 2], ARGV[at + 3], token, row[3]}
  end
  if reason then
    refused[#refused + 1] = {id, row[1], reason, token}
    verdicts[i] = redis.error_reply(
      'EMQSTALE bury ' .. reason .. ' (yours ' .. token .. ', row ' .. row[1] .. ')')
  end
end
redis.call('ZCARD', dead)

-- Write.
for _, move in ipairs(moves) do
  local id, reason, traceback, token = move[1], move[2], move[3], move[4]
  redis.call('ZREM', active, id)
  redis.call('HSET', jobs .. id, 'state', 'dead', 'settled', 'bury', 'finished_at', now,
    'last_error', reason)
  if traceback ~= '' then
    redis.call('HSET', jobs .. id, 'traceback', traceback)
  end
  if move[5] then
    redis.call('HSET', jobs .. id, 'errors', errors_with(move[5], reason, traceback))
  end
  redis.call('ZADD', dead, now, id)
  note('buried', id, token, reason)
  tell(id, 'dead')
end
keep_cap()
tally('dead', #moves)
tally('stale', #refused)
for _, refusal in ipairs(refused) do
  note('refused', refusal[1], refusal[2], 'bury ' .. refusal[3], refusal[4])
end
return verdicts
