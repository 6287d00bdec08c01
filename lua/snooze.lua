-- snooze.lua: run held jobs later; this is no failure.
--
-- KEYS[1] active    zset    leased ids, scored by lease expiry in ms
-- KEYS[2] schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[3] wake      list    readiness tokens
-- KEYS[4] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[5] trail     stream  what happened; capped
--
-- ARGV[1]  jobs       prefix of the rows
-- ARGV[2]  trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[3…] a job:     id, token, due ('+ms' from now, 'ms' since 1970)
--
-- Returns one verdict a job: 1 moved (also when this token has moved it before).
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQGONE when the row is gone.

local active, schedule, wake, metrics, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local jobs, trail_max = ARGV[1], tonumber(ARGV[2])

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

local ids = {}
for at = 3, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local leases = redis.call('ZMSCORE', active, unpack(ids))

-- Read and decide.
local verdicts, moves, seen, refused = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local at = 3 + 3 * (i - 1)
  local token = ARGV[at + 1]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'settled')
  local reason
  if row.err or not row[1] then
    verdicts[i] = redis.error_reply('EMQGONE snooze job gone')
  elseif row[1] ~= token then
    reason = 'token mismatch'
  elseif row[2] == 'snooze' or seen[id] then
    verdicts[i] = 1
  elseif not leases[i] then
    reason = row[2] and 'not held, settled before by ' .. row[2] or 'not held'
  else
    seen[id] = true
    verdicts[i] = 1
    moves[#moves + 1] = {id, ARGV[at + 2]}
  end
  if reason then
    refused[#refused + 1] = {id, row[1], reason, token}
    verdicts[i] = redis.error_reply(
      'EMQSTALE snooze ' .. reason .. ' (yours ' .. token .. ', row ' .. row[1] .. ')')
  end
end
local awake = redis.call('LLEN', wake)
local first_due = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2]
first_due = tonumber(first_due) or math.huge

-- Write.
local earlier = false
for _, move in ipairs(moves) do
  local id, due = move[1], move[2]
  if string.sub(due, 1, 1) == '+' then
    due = now + tonumber(string.sub(due, 2))
  else
    due = tonumber(due)
  end
  redis.call('ZREM', active, id)
  redis.call('HSET', jobs .. id, 'state', 'scheduled', 'settled', 'snooze')
  redis.call('ZADD', schedule, due, id)
  earlier = earlier or due < first_due
end
if earlier and awake == 0 then
  redis.call('LPUSH', wake, '1')
end
tally('snoozed', #moves)
tally('stale', #refused)
for _, refusal in ipairs(refused) do
  note('refused', refusal[1], refusal[2], 'snooze ' .. refusal[3], refusal[4])
end
return verdicts
