-- drain.lua: delete the jobs of one set, a bounded number at a time.
--
-- KEYS[1] set      zset    pending, schedule, dead or done
-- KEYS[2] metrics  hash    counters; metrics:<minute> stands beside it
-- KEYS[3] trail    stream  what happened; capped
--
-- ARGV[1] jobs       prefix of the rows
-- ARGV[2] by         who asks, for the trail
-- ARGV[3] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[4] batch      how many at most
--
-- Returns how many were deleted, rows and log lines with them; fewer than batch when none is
-- left. Held jobs, other sets and the counters stay.

local set, metrics, trail = KEYS[1], KEYS[2], KEYS[3]
local jobs, by, trail_max, batch = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

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

local ids = redis.call('ZRANGE', set, 0, batch - 1)
if #ids == 0 then
  return 0
end
local rows = {}
for _, id in ipairs(ids) do
  rows[#rows + 1] = jobs .. id
  rows[#rows + 1] = jobs .. id .. ':logs'
end
redis.call('ZREMRANGEBYRANK', set, 0, #ids - 1)
if not string.match(set, ':d%w+$') then  -- what is dead or done holds no key, nobody waits for it
  for _, id in ipairs(ids) do
    free(id)
    tell(id, 'removed')
  end
end
redis.call('DEL', unpack(rows))
if trail_max > 0 then
  redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*',
    'event', 'drained', 'count', #ids, 'set', string.match(set, '[^:]+$'), 'by', by)
end
tally('removed', #ids)
return #ids
