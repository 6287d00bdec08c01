-- promote.lua: make jobs ready whose time has come.
--
-- KEYS[1] schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[2] pending   zset    ids ready to run, scored by -priority
-- KEYS[3] dead      zset    the morgue, scored by time of death in ms
-- KEYS[4] wake      list    readiness tokens
-- KEYS[5] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[6] trail     stream  what happened; capped
--
-- ARGV[1] jobs       prefix of the rows
-- ARGV[2] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[3] batch      how many at most
--
-- Returns how many left schedule. A row that is not sound goes to the morgue with a reason.

local schedule, pending, dead, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local metrics, trail = KEYS[5], KEYS[6]
local jobs, trail_max, batch = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

if redis.call('ZCARD', schedule) == 0 then  -- an idle queue costs one look
  return 0
end

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

-- The row's attempts and priority; or false and why it is not sound.
local function read(id)
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'priority')
  if row.err then
    return false, 'damaged row: the key holds a ' .. redis.call('TYPE', jobs .. id).ok
  elseif not row[1] then
    return false, 'damaged row: it is missing, or has no attempts'
  elseif #row[1] > 15 or row[1] ~= '0' and not string.match(row[1], '^[1-9]%d*$') then
    return false, 'damaged row: attempts is no whole number'
  end
  return row
end

-- A row's number, or the default where there is none: what a stranger wrote may be no number.
local function whole(text, default)
  return text and #text < 16 and string.match(text, '^-?%d+$') and tonumber(text) or default
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
    redis.pcall('HDEL', jobs .. id, 'waiters')
    for waiter in string.gmatch(waiters, '%w+') do
      local list = string.sub(jobs, 1, -5) .. 'waiter:' .. waiter
      redis.pcall('RPUSH', list, word)
      redis.pcall('PEXPIRE', list, 60000)
    end
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

local function bury_damaged(id, reason)
  local row = jobs .. id
  if redis.call('TYPE', row).ok ~= 'hash' then
    redis.call('DEL', row)
  end
  redis.call('HSET', row, 'state', 'dead', 'last_error', reason, 'finished_at', now)
  redis.call('HSETNX', row, 'attempts', '0')
  redis.call('ZADD', dead, now, id)
  free(id)
  note('died', id, '', reason)
  tell(id, 'dead')
end

-- Read and decide.
local due = redis.call('ZRANGEBYSCORE', schedule, '-inf', now, 'LIMIT', 0, batch)
redis.call('ZCARD', pending)
redis.call('ZCARD', dead)
redis.call('LLEN', wake)
local rows, ready = {}, {}
for i, id in ipairs(due) do
  local row, reason = read(id)
  rows[i] = row or reason
end

-- Write.
if #due > 0 then
  redis.call('ZREM', schedule, unpack(due))
end
for i, id in ipairs(due) do
  if type(rows[i]) == 'table' then
    ready[#ready + 1] = 0 - whole(rows[i][2], 0)
    ready[#ready + 1] = id
    redis.call('HSET', jobs .. id, 'state', 'pending')
  else
    bury_damaged(id, rows[i])
  end
end
if #ready > 0 then
  redis.call('ZADD', pending, unpack(ready))
  if redis.call('LLEN', wake) == 0 then
    redis.call('LPUSH', wake, '1')
  end
end
tally('promoted', #ready / 2)
tally('dead', #due - #ready / 2)
return #due
