-- claim.lua: lease the next jobs to a worker and mint their tokens.
--
-- KEYS[1]  pending   zset    ids ready to run, scored by -priority
-- KEYS[2]  active    zset    leased ids, scored by lease expiry in ms
-- KEYS[3]  schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[4]  dead      zset    the morgue, scored by time of death in ms
-- KEYS[5]  wake      list    readiness tokens
-- KEYS[6]  meta      hash    paused; concurrency; max claims in each duration ms
-- KEYS[7]  metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[8]  limiter   string  claims in the running window of the rate limit
-- KEYS[9]  claims    string  the last request of this worker and what it was given
-- KEYS[10] trail     stream  what happened; capped
--
-- ARGV[1] jobs       prefix of the rows
-- ARGV[2] request    id of this call; the same id again is given the same jobs and tokens
-- ARGV[3] worker     who holds the jobs
-- ARGV[4] lease_ms   how long, unless the row has a lease_ms of its own
-- ARGV[5] count      how many at most; 0 takes none and only passes the wake on
-- ARGV[6] due        how many due jobs to promote first, at most
-- ARGV[7] trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[8] trail_all  the same for claims that are nothing special
-- ARGV[9] fences     prefix of the last number of each resource that a row names (fence_key)
-- ARGV[10] dead_max  how many dead jobs are kept; the oldest go first
--
-- Returns {next_ms, receipt, fences, id, payload, token, failures, id, payload, token, …}.
--         receipt is "<request> <id>:<token> …". next_ms is the time until a job falls due or
--         the rate limit lets one pass, -1 for no such time; it is told only when fewer than
--         count jobs were found. fences is "<place>:<number> …" of the jobs whose row names a
--         resource, counted from 0 in the order of the jobs; each claim for a resource has a
--         higher number than the last one, whatever the job.
--
-- A row that is not sound never reaches a worker: its id goes to the morgue with a reason,
-- and the next one is served. So does a job whose time (expires_at) is over.
--
-- A row with the field 'ties' names more that its claim concerns (fence_key, expires_at); all
-- other rows pay for no look at such things.

local pending, active, schedule, dead, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local meta, metrics, limiter, claims, trail = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local jobs, request, worker = ARGV[1], ARGV[2], ARGV[3]
local lease_ms, count, due_max = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local trail_max, trail_all, fences = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local dead_max = tonumber(ARGV[10])

local EXAMINED_MAX = 1000
local FENCE_MS = 3600000
local CLAIMS_MAX = 16384

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The row's attempts, payload, settled, lease_ms and ties; or false and why not.
local function read(id, key)
  if #id > 32 then
    return false, 'damaged entry: this is no job id'
  end
  local row = redis.pcall('HMGET', key, 'attempts', 'payload', 'settled', 'lease_ms', 'ties')
  if row.err then
    return false, 'damaged row: the key holds a ' .. redis.call('TYPE', key).ok
  elseif not row[1] and not row[2] then
    return false, 'damaged row: it is missing'
  elseif not row[1] or #row[1] > 15
    or row[1] ~= '0' and not string.match(row[1], '^[1-9]%d*$') then
    return false, 'damaged row: attempts is no whole number'
  elseif not row[2] then
    return false, 'damaged row: payload is missing'
  end
  return row
end

-- A row's number, or the default where there is none: what a stranger wrote may be no number.
local function whole(text, default)
  return text and #text < 16 and string.match(text, '^-?%d+$') and tonumber(text) or default
end

-- The next number of a resource. Above the last one and never below the clock: so it also grows
-- when the last one has been forgotten, by its time to live or with the server's data.
local function raise(resource)
  local last = redis.pcall('GET', fences .. resource)
  last = type(last) == 'string' and whole(last, 0) or 0
  local number = string.format('%.0f', math.max(last + 1, now))
  redis.call('SET', fences .. resource, number, 'PX', FENCE_MS)
  return number
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

-- The claims so far and one more, for rows that keep them: the first and the newest ones.
local function claims_with(kept, claimer, at)
  kept = kept .. (claimer or '') .. '@' .. (at or '') .. '\n'
  if #kept > CLAIMS_MAX then
    local first = string.find(kept, '\n', 1, true)
    local later = string.find(kept, '\n', #kept - CLAIMS_MAX / 2, true)
    kept = string.sub(kept, 1, first) .. string.sub(kept, later + 1)
  end
  return kept
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

local function tally(name, n)
  if n > 0 then
    local minute = metrics .. ':' .. math.floor(now / 60000)
    redis.pcall('HINCRBY', metrics, name, n)
    redis.pcall('HINCRBY', minute, name, n)
    redis.pcall('EXPIRE', minute, 172800)
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

-- What a tied row names: its resource, and whether its time is over, and then it is buried.
local function tied(id, token)
  local row = redis.call('HMGET', jobs .. id, 'fence_key', 'expires_at', 'last_error')
  local late = now - whole(row[2], math.huge)
  if late < 0 then
    return row[1], false
  end
  local why = string.format('expired: its time was over %.1f s before it could run', late / 1000)
  if row[3] then
    local last = string.gsub(string.sub(row[3], 1, 2000), '[\192-\255][\128-\191]*$', '')
    why = why .. '. The last error was: ' .. (#row[3] > 2000 and last .. ' …' or row[3])
  end
  redis.call('HSET', jobs .. id, 'state', 'dead', 'settled', 'expire', 'last_error', why,
    'finished_at', now)
  redis.call('ZADD', dead, now, id)
  free(id)
  note('died', id, token, why)
  tell(id, 'dead')
  return false, true
end

-- The same request again: its reply was lost. Answer what it was given and still holds.
local last = redis.call('GET', claims)
if last and string.sub(last, 1, #request + 1) == request .. ' ' then
  local reply, numbers = {-1, last, ''}, {}
  redis.call('ZREM', active, '')  -- begins the writes, so that a full server lets them pass
  for id, token in string.gmatch(last, ' (%w+):(%d+)') do
    local row = read(id, jobs .. id)
    if row and row[1] == token and redis.call('ZSCORE', active, id) then
      redis.call('ZADD', active, 'XX', now + whole(row[4], lease_ms), id)
      reply[#reply + 1] = id
      reply[#reply + 1] = row[2]
      reply[#reply + 1] = tonumber(token)
      reply[#reply + 1] = whole(redis.call('HGET', jobs .. id, 'failures'), 0)
      local number = row[5] and whole(redis.call('HGET', jobs .. id, 'fence'), 0)
      if number and number > 0 then
        numbers[#numbers + 1] = string.format('%d:%.0f', (#reply - 3) / 4 - 1, number)
      end
    end
  end
  reply[3] = table.concat(numbers, ' ')
  return reply
end

local limits = redis.call('HMGET', meta, 'paused', 'concurrency', 'max', 'duration')
if limits[1] then
  return {-1, '', ''}
end

-- An idle worker asks now and then: where nothing waits and nothing is due, that is soon said.
local first = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2]
local due_in = first and math.max(tonumber(first) - now, 0)
if redis.call('ZCARD', pending) == 0 and due_in ~= 0 then
  redis.call('DEL', wake)
  return {count > 0 and due_in or -1, '', ''}
end

local concurrency, max, duration = tonumber(limits[2]), tonumber(limits[3]), tonumber(limits[4])
local running = redis.call('ZCARD', active)
local awake = redis.call('LLEN', wake)
redis.call('ZCARD', dead)
local wanted, limited, window = count, false, -1
if concurrency and concurrency > 0 and concurrency - running < wanted then
  wanted, limited = math.max(concurrency - running, 0), true
end
if max and duration and max > 0 and duration > 0 then
  local room = max - (tonumber(redis.call('GET', limiter) or '0') or 0)
  if room < wanted then
    wanted, limited, window = math.max(room, 0), true, redis.call('PTTL', limiter)
    window = window < 0 and duration or window
  end
end

-- What is due goes to pending first.
local buried = 0
local due = due_in ~= 0 and {}
  or redis.call('ZRANGEBYSCORE', schedule, '-inf', now, 'LIMIT', 0, due_max)
if #due > 0 then
  local rows, ready = {}, {}
  for i, id in ipairs(due) do
    local row, reason = read(id, jobs .. id)
    rows[i] = row or reason
  end
  redis.call('ZREM', schedule, unpack(due))
  for i, id in ipairs(due) do
    if type(rows[i]) == 'table' then
      ready[#ready + 1] = 0 - whole(redis.call('HGET', jobs .. id, 'priority'), 0)
      ready[#ready + 1] = id
      redis.call('HSET', jobs .. id, 'state', 'pending')
    else
      bury_damaged(id, rows[i])
      buried = buried + 1
    end
  end
  if #ready > 0 then
    redis.call('ZADD', pending, unpack(ready))
    tally('promoted', #ready / 2)
  end
end

-- Take the first `wanted` sound rows. Each row is read, and found sound, right before it is
-- written, so that nothing can fail half-way; what leaves pending is the first write, since it
-- frees memory and so passes on a full server too.
local taken, examined, expired = 0, 0, 0
local reply, leases, receipt, numbers = {-1, '', ''}, {}, {request}, {}
local started_at, lease_ends = string.format('%.0f', now), string.format('%.0f', now + lease_ms)
while taken < wanted and examined < EXAMINED_MAX do
  local last = math.min(wanted - taken, EXAMINED_MAX - examined) - 1
  local popped = redis.call('ZRANGE', pending, 0, last)
  if #popped == 0 then
    break
  end
  redis.call('ZREMRANGEBYRANK', pending, 0, last)
  for _, id in ipairs(popped) do
    local key = jobs .. id
    local row, reason = read(id, key)
    examined = examined + 1
    local resource, over
    if row and row[5] then
      resource, over = tied(id, row[1])
    end
    if over then
      expired = expired + 1
    elseif row then
      local token = redis.call('HINCRBY', key, 'attempts', 1)
      local failures = 0
      if token > 1 then  -- a first claim has nothing behind it
        local past = redis.call('HMGET', key, 'failures', 'claims', 'worker', 'started_at')
        failures = whole(past[1], 0)
        if past[2] then
          redis.call('HSET', key, 'claims', claims_with(past[2], past[3], past[4]))
        end
      end
      redis.call('HSET', key, 'state', 'active', 'worker', worker, 'started_at', started_at)
      if row[3] then
        redis.call('HDEL', key, 'settled')
      end
      leases[2 * taken + 1] = row[4] and now + whole(row[4], lease_ms) or lease_ends
      leases[2 * taken + 2] = id
      local n = 4 * taken + 3
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, row[2], token, failures
      if resource then
        local number = raise(resource)
        redis.call('HSET', key, 'fence', number)
        numbers[#numbers + 1] = taken .. ':' .. number
      end
      taken = taken + 1
      receipt[taken + 1] = id .. (token == 1 and ':1' or string.format(':%.0f', token))
      if trail_all > 0 then
        note('claimed', id, token, worker)
      end
    else
      bury_damaged(id, reason)
      buried = buried + 1
    end
  end
end
if buried + expired > 0 then
  keep_cap()
  awake = redis.call('LLEN', wake)  -- who waits behind such a job may have been made due
  tally('expired', expired)
  tally('dead', buried + expired)
end
if taken > 0 then
  redis.call('ZADD', active, unpack(leases))
  reply[2], reply[3] = table.concat(receipt, ' '), table.concat(numbers, ' ')
  redis.call('SET', claims, reply[2], 'PX', 600000)
  tally('claimed', taken)
  if max and duration and max > 0 and duration > 0 then
    if redis.call('INCRBY', limiter, taken) == taken then
      redis.call('PEXPIRE', limiter, duration)
    end
  end
end

-- One wake is left for the next worker while there is work that it may take.
local left = redis.call('ZCARD', pending)
if left > 0 and not limited and awake == 0 then
  redis.call('LPUSH', wake, '1')
elseif left == 0 and awake > 0 and buried + expired == 0 then
  redis.call('DEL', wake)
end
if taken < count then
  first = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2]
  if first then
    reply[1] = math.max(tonumber(first) - now, 0)
  end
  if left > 0 and window >= 0 and (reply[1] < 0 or window < reply[1]) then
    reply[1] = window
  end
end
return reply
