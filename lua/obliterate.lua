-- obliterate.lua: delete everything of a paused queue, a bounded number of jobs at a time.
--
-- KEYS[1]  meta      hash    paused and limits
-- KEYS[2]  pending   zset    ids ready to run
-- KEYS[3]  schedule  zset    ids waiting for a time
-- KEYS[4]  dead      zset    the morgue
-- KEYS[5]  done      zset    finished ids whose row is kept
-- KEYS[6]  active    zset    leased ids
-- KEYS[7]  wake      list    readiness tokens
-- KEYS[8]  metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[9]  limiter   string  claims in the running window
-- KEYS[10] trail     stream  what happened
-- KEYS[11] onward    hash    jobs of chains that are to be admitted to other queues
-- KEYS[12] repeat    zset    names of schedules; a record stands beside it for each, repeat:<name>
--
-- ARGV[1] jobs   prefix of the rows
-- ARGV[2] force  '1' to delete held jobs as well
-- ARGV[3] batch  how many jobs at most
--
-- Returns 1 when more is left (call again), 0 when nothing is.
-- Errors  EMQSTATE when the queue is not paused, or holds jobs and force is not given.

local meta, active, metrics = KEYS[1], KEYS[6], KEYS[8]
local jobs, force, batch = ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

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

if not redis.call('HGET', meta, 'paused') then
  return redis.error_reply('EMQSTATE not paused')
end
local held = redis.pcall('ZCARD', active)
if force ~= '1' and (type(held) ~= 'number' or held > 0) then
  return redis.error_reply('EMQSTATE active jobs present')
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

local left = batch
for set = 2, 6 do
  local ids = left > 0 and redis.pcall('ZRANGE', KEYS[set], 0, left - 1) or {}
  if ids.err then
    redis.call('DEL', KEYS[set])  -- it is no sorted set: there is nothing to go through
  elseif #ids > 0 then
    local rows = {}
    for _, id in ipairs(ids) do
      rows[#rows + 1] = jobs .. id
      rows[#rows + 1] = jobs .. id .. ':logs'
    end
    redis.call('ZREMRANGEBYRANK', KEYS[set], 0, #ids - 1)
    for _, id in ipairs(ids) do
      free(id)
      tell(id, 'removed')
    end
    redis.call('DEL', unpack(rows))
    left = left - #ids
  end
end
if left == 0 then
  return 1
end
local minutes = {}
for back = 0, 2880 do
  minutes[#minutes + 1] = metrics .. ':' .. (math.floor(now / 60000) - back)
end
redis.call('DEL', unpack(minutes))
local schedules = redis.pcall('ZRANGE', KEYS[12], 0, -1)
for _, name in ipairs(schedules.err and {} or schedules) do
  redis.call('DEL', KEYS[12] .. ':' .. name)
end
redis.call('DEL', unpack(KEYS))
return 0
