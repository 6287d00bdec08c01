-- cancel.lua: put jobs that wait or are held into the morgue, where they can be given back.
--
-- KEYS[1] active    zset    leased ids, scored by lease expiry in ms
-- KEYS[2] schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[3] pending   zset    ids ready to run, scored by -priority
-- KEYS[4] dead      zset    the morgue, scored by time of death in ms
-- KEYS[5] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[6] trail     stream  what happened; capped
--
-- ARGV[1] jobs       prefix of the rows
-- ARGV[2] by         who asks, for the trail
-- ARGV[3] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[4] only       active, schedule or pending, to leave alone what is elsewhere by now;
--                    '' for all three
-- ARGV[5] dead_max   how many dead jobs are kept; the oldest go first
-- ARGV[6…]           ids
--
-- Returns one verdict a job: 1 cancelled.
-- Errors  EMQSTATE when the job is in no such set, or not in `only`; EMQGONE when its row is gone.
--
-- The token of a held job moves first: the run that goes on is refused, it cannot race.

local active, schedule, pending, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local metrics, trail = KEYS[5], KEYS[6]
local jobs, by, trail_max, only = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local dead_max = tonumber(ARGV[5])

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

local function note(event, id, token)
  if trail_max > 0 then
    redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*',
      'event', event, 'id', id, 'token', token, 'by', by)
  end
end

-- Free the unique key of a job that ends, if the job holds it, and not for a time of its own. A job
-- that waits behind it gets the key, and is due.
local function free(id)
  local row = redis.pcall('HMGET', jobs .. id, 'unique', 'heir')
  local digest = row[1] and string.match(row[1], '^(%x+) [fs]')
  local base = string.sub(jobs, 1, -5)
  if not digest or redis.pcall('GET', base .. 'unique:' .. digest) ~= id then
    return
  end
  local heir = row[2] and redis.pcall('HMGET', jobs .. row[2], 'behind', 'due') or {}
  local due = heir[1] == id and string.match(heir[2] or '', '^%d+$')
  if due and type(redis.pcall('ZSCORE', base .. 'schedule', row[2])) == 'string' then
    redis.call('SET', base .. 'unique:' .. digest, row[2])
    redis.call('HDEL', jobs .. row[2], 'behind', 'due')
    redis.call('ZADD', base .. 'schedule', due, row[2])
    if redis.pcall('LLEN', base .. 'wake') == 0 then
      redis.call('LPUSH', base .. 'wake', '1')
    end
  else
    redis.call('DEL', base .. 'unique:' .. digest)
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
    redis.pcall('HDEL', jobs .. id, 'waiters')
    for waiter in string.gmatch(waiters, '%w+') do
      local list = string.sub(jobs, 1, -5) .. 'waiter:' .. waiter
      redis.pcall('RPUSH', list, word)
      redis.pcall('PEXPIRE', list, 60000)
    end
  end
end

-- Read and decide.
redis.call('ZCARD', dead)
local names = {[active] = 'active', [schedule] = 'schedule', [pending] = 'pending'}
local verdicts, moves, seen = {}, {}, {}
for i = 6, #ARGV do
  local id = ARGV[i]
  local token = redis.pcall('HGET', jobs .. id, 'attempts')
  local set
  for _, key in ipairs({active, schedule, pending}) do
    set = set or redis.call('ZSCORE', key, id) and key
  end
  if type(token) ~= 'string' or #token > 15
    or token ~= '0' and not string.match(token, '^[1-9]%d*$') then
    verdicts[#verdicts + 1] = redis.error_reply('EMQGONE cancel job gone')
  elseif seen[id] or not set then
    verdicts[#verdicts + 1] = redis.error_reply('EMQSTATE neither waiting nor held')
  elseif only ~= '' and names[set] ~= only then
    verdicts[#verdicts + 1] = redis.error_reply(
      'EMQSTATE not in ' .. only .. ' but in ' .. names[set])
  else
    seen[id] = true
    verdicts[#verdicts + 1] = 1
    moves[#moves + 1] = {id, token, set}
  end
end

-- Write.
for _, move in ipairs(moves) do
  local id, token, set = move[1], move[2], move[3]
  redis.call('ZREM', set, id)
  free(id)
  if set == active then
    token = redis.call('HINCRBY', jobs .. id, 'attempts', 1)
  end
  redis.call('HSET', jobs .. id, 'state', 'dead', 'settled', 'cancel', 'finished_at', now,
    'last_error', by == '' and 'cancelled' or 'cancelled by ' .. by)
  redis.call('ZADD', dead, now, id)
  note('cancelled', id, token)
  tell(id, 'dead')
end
keep_cap()
tally('cancelled', #moves)
tally('dead', #moves)
return verdicts
