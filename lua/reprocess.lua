-- reprocess.lua: give dead jobs another life.
--
-- KEYS[1] dead     zset    the morgue, scored by time of death in ms
-- KEYS[2] pending  zset    ids ready to run, scored by -priority
-- KEYS[3] wake     list    readiness tokens
-- KEYS[4] metrics  hash    counters; metrics:<minute> stands beside it
-- KEYS[5] trail    stream  what happened; capped
--
-- ARGV[1] jobs       prefix of the rows
-- ARGV[2] by         who asks, for the trail
-- ARGV[3] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[4…]           ids
--
-- Returns one verdict a job: 1 pending again, with failures and stalls back at 0.
-- Errors  EMQSTATE when the job is not dead; EMQKEY when another job holds its unique key by
--         now; EMQGONE when its row is gone.
--
-- The token stays, so it still grows only; the mark `settled` keeps the holder of the last life
-- from completing this one.

local dead, pending, wake, metrics, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local jobs, by, trail_max = ARGV[1], ARGV[2], tonumber(ARGV[3])

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

-- The unique key that a job takes again; nothing where it has none. And who else holds it.
local keys, taken = string.sub(jobs, 1, -5) .. 'unique:', {}
local function key_of(id, unique, attempts)
  local digest, kind = string.match(unique or '', '^(%x+) (%a+)$')
  if not digest or kind == 'time' or kind == 'start' and attempts ~= '0' then
    return
  end
  local key = keys .. digest
  local other = taken[key] or redis.pcall('GET', key)
  if type(other) ~= 'string' or other == id then
    return key
  elseif taken[key] or redis.call('PTTL', key) > 0 then
    return key, other
  end
  local row = redis.pcall('HMGET', jobs .. other, 'state', 'unique', 'attempts')
  local lives = row[2] and row[1] ~= 'dead' and row[1] ~= 'done'
  if lives and (row[2] == digest .. ' finish' or row[2] == digest .. ' start' and row[3] == '0') then
    return key, other
  end
  return key
end

-- Read and decide.
redis.call('ZCARD', pending)
local awake = redis.call('LLEN', wake)
local verdicts, moves, seen = {}, {}, {}
for i = 4, #ARGV do
  local id = ARGV[i]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'priority', 'unique')
  local key, holder = key_of(id, row[3], row[1])
  if row.err or not row[1] then
    verdicts[#verdicts + 1] = redis.error_reply('EMQGONE reprocess job gone')
  elseif seen[id] or not redis.call('ZSCORE', dead, id) then
    verdicts[#verdicts + 1] = redis.error_reply('EMQSTATE not dead')
  elseif holder then
    verdicts[#verdicts + 1] = redis.error_reply('EMQKEY job ' .. holder
      .. ' holds its unique key. Wait until that one has ended, or remove it')
  else
    seen[id] = true
    verdicts[#verdicts + 1] = 1
    moves[#moves + 1] = {id, row[1], 0 - whole(row[2], 0), key}
    if key then
      taken[key] = id
    end
  end
end

-- Write.
for _, move in ipairs(moves) do
  local id, token, score, key = move[1], move[2], move[3], move[4]
  redis.call('ZREM', dead, id)
  redis.call('HDEL', jobs .. id, 'failures', 'stalls', 'last_error', 'traceback',
    'finished_at', 'expires_at')
  if key then
    redis.call('SET', key, id)
    redis.call('HDEL', jobs .. id, 'behind', 'due', 'heir', 'unique_since', 'duplicates')
  end
  redis.call('HSET', jobs .. id, 'state', 'pending', 'settled', 'reprocess')
  redis.call('ZADD', pending, score, id)
  note('reprocessed', id, token)
end
if #moves > 0 and awake == 0 then
  redis.call('LPUSH', wake, '1')
end
tally('reprocessed', #moves)
return verdicts
