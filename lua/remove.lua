-- remove.lua: delete jobs, wherever they are.
--
-- KEYS[1] pending   zset    ids ready to run
-- KEYS[2] active    zset    leased ids
-- KEYS[3] schedule  zset    ids waiting for a time
-- KEYS[4] dead      zset    the morgue
-- KEYS[5] done      zset    finished ids whose row is kept
-- KEYS[6] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[7] trail     stream  what happened; capped
--
-- ARGV[1] jobs       prefix of the rows
-- ARGV[2] by         who asks, for the trail
-- ARGV[3] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[4] force      '1' to remove held jobs as well
-- ARGV[5] only       a set, to leave alone what is elsewhere by now; none for jobs that are in no
--                    set; '' for all
-- ARGV[6…]           ids
--
-- Returns one verdict a job: 1 removed, row and log lines with it.
-- Errors  EMQLOCK when a worker holds the job and force is not given;
--         EMQSTATE when it is not in `only`; EMQGONE when nothing of the job is there.
--
-- The row of a held job goes, and its token with it: the run that goes on is refused.

local active = KEYS[2]
local metrics, trail = KEYS[6], KEYS[7]
local jobs, by, trail_max, force, only = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local names = {'pending', 'active', 'schedule', 'dead', 'done'}

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

local verdicts, removed = {}, 0
for i = 6, #ARGV do
  local id = ARGV[i]
  local token = redis.pcall('HGET', jobs .. id, 'attempts')
  local sets, where = {}, nil
  for set = 1, 5 do
    if redis.call('ZSCORE', KEYS[set], id) then
      sets[#sets + 1] = KEYS[set]
      if where ~= only then  -- damage: an id may be in two sets
        where = names[set]
      end
    end
  end
  where = where or 'none'
  if #sets == 0 and redis.call('TYPE', jobs .. id).ok ~= 'hash' then
    verdicts[#verdicts + 1] = redis.error_reply('EMQGONE remove job gone')
  elseif only ~= '' and where ~= only then
    verdicts[#verdicts + 1] = redis.error_reply('EMQSTATE not in ' .. only .. ' but in ' .. where)
  elseif force ~= '1' and redis.call('ZSCORE', active, id) then
    verdicts[#verdicts + 1] = redis.error_reply('EMQLOCK job is held by a worker')
  else
    for _, set in ipairs(sets) do
      redis.call('ZREM', set, id)
    end
    free(id)
    tell(id, 'removed')
    redis.call('DEL', jobs .. id, jobs .. id .. ':logs')
    note('removed', id, type(token) == 'string' and token or '')
    removed = removed + 1
    verdicts[#verdicts + 1] = 1
  end
end
tally('removed', removed)
return verdicts
