-- requeue.lua: make jobs ready now that wait for a time, or that a worker holds.
--
-- KEYS[1] active    zset    leased ids, scored by lease expiry in ms
-- KEYS[2] schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[3] pending   zset    ids ready to run, scored by -priority
-- KEYS[4] wake      list    readiness tokens
-- KEYS[5] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[6] trail     stream  what happened; capped
--
-- ARGV[1] jobs       prefix of the rows
-- ARGV[2] by         who asks, for the trail
-- ARGV[3] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[4] only       active or schedule, to leave alone what is elsewhere by now; '' for both
-- ARGV[5…]           ids
--
-- Returns one verdict a job: 1 pending.
-- Errors  EMQSTATE when the job neither waits nor is held, or is not in `only`;
--         EMQKEY when it waits behind the job that holds its unique key;
--         EMQGONE when its row is gone.
--
-- The token of a held job moves first: the run that goes on is refused, it cannot race.

local active, schedule, pending, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local metrics, trail = KEYS[5], KEYS[6]
local jobs, by, trail_max, only = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

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

-- A row's number, or the default where there is none: what a stranger wrote may be no number.
local function whole(text, default)
  return text and #text < 16 and string.match(text, '^-?%d+$') and tonumber(text) or default
end

local function note(event, id, token)
  if trail_max > 0 then
    redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*',
      'event', event, 'id', id, 'token', token, 'by', by)
  end
end

-- Read and decide.
redis.call('ZCARD', pending)
local awake = redis.call('LLEN', wake)
local verdicts, moves, seen = {}, {}, {}
for i = 5, #ARGV do
  local id = ARGV[i]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'priority', 'behind')
  local held = not seen[id] and redis.call('ZSCORE', active, id)
  local set = held and 'active' or redis.call('ZSCORE', schedule, id) and 'schedule'
  if row.err or not row[1] or #row[1] > 15
    or row[1] ~= '0' and not string.match(row[1], '^[1-9]%d*$') then
    verdicts[#verdicts + 1] = redis.error_reply('EMQGONE requeue job gone')
  elseif seen[id] or not set then
    verdicts[#verdicts + 1] = redis.error_reply('EMQSTATE neither waiting nor held')
  elseif only ~= '' and set ~= only then
    verdicts[#verdicts + 1] = redis.error_reply('EMQSTATE not in ' .. only .. ' but in ' .. set)
  elseif row[3] then
    verdicts[#verdicts + 1] = redis.error_reply(
      'EMQKEY it waits behind job ' .. row[3] .. ', which holds its unique key')
  else
    seen[id] = true
    verdicts[#verdicts + 1] = 1
    moves[#moves + 1] = {id, row[1], 0 - whole(row[2], 0), held}
  end
end

-- Write.
for _, move in ipairs(moves) do
  local id, token, score, held = move[1], move[2], move[3], move[4]
  redis.call('ZREM', held and active or schedule, id)
  if held then
    token = redis.call('HINCRBY', jobs .. id, 'attempts', 1)
  end
  redis.call('HSET', jobs .. id, 'state', 'pending', 'settled', 'requeue')
  redis.call('ZADD', pending, score, id)
  note('requeued', id, token)
end
if #moves > 0 and awake == 0 then
  redis.call('LPUSH', wake, '1')
end
tally('requeued', #moves)
return verdicts
