-- reap.lua: take back jobs whose lease has lapsed.
--
-- KEYS[1] active   zset    leased ids, scored by lease expiry in ms
-- KEYS[2] pending  zset    ids ready to run, scored by -priority
-- KEYS[3] dead     zset    the morgue, scored by time of death in ms
-- KEYS[4] wake     list    readiness tokens
-- KEYS[5] metrics  hash    counters; metrics:<minute> stands beside it
-- KEYS[6] trail    stream  what happened; capped
-- KEYS[7] schedule zset    ids waiting for a time; for the jobs of a chain
-- KEYS[8] onward   hash    jobs of chains that are to be admitted to other queues
-- KEYS[9] repeat   zset    names of schedules, scored by their next time in ms
--
-- ARGV[1] jobs        prefix of the rows
-- ARGV[2] trail_max   entries that the trail keeps, about; 0 for no trail
-- ARGV[3] max_stalls  lost leases before the morgue, unless the row has its own
-- ARGV[4] batch       how many at most
-- ARGV[5] dead_max    how many dead jobs are kept; the oldest go first
--
-- Returns {next_ms, ids back in pending, ids now dead, onward, tick_ms}. next_ms is the time until
--         the next lease may lapse, -1 when no job is held; onward is how many jobs are to be
--         admitted to other queues; tick_ms the time until the next time of a schedule, -1 when
--         there is none.
--
-- The token stays as it is: the next claim raises it, which shuts the old holder out. Until
-- then the old holder may still complete the job, and nothing else.

local active, pending, dead, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local metrics, trail, schedule, onward = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local jobs, trail_max = ARGV[1], tonumber(ARGV[2])
local max_stalls, batch, dead_max = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The ms until the next time of a schedule: the sweep that looks here anyway need not ask.
local function until_tick()
  local first = redis.pcall('ZRANGE', KEYS[9], 0, 0, 'WITHSCORES')
  first = not first.err and tonumber(first[2] or '')
  return first and first < math.huge and math.min(math.max(first - now, 0), 86400000) or -1
end

if redis.call('ZCARD', active) == 0 then  -- an idle queue costs three looks
  return {-1, {}, {}, redis.call('HLEN', onward), until_tick()}
end

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

local function note(event, id, token, text, yours)
  if trail_max > 0 then
    if #text > 200 then  -- and no half of a character at the end
      text = string.gsub(string.sub(text, 1, 200), '[\192-\255][\128-\191]*$', '')
    end
    redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*', 'event', event, 'id', id,
      'token', token, 'note', text, 'yours', yours or '')
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

-- Chains (docs/chains.md): what hangs on the end of a job is admitted by the step that ends it, so
-- that no crash comes between. Lists of texts are written "<bytes>:<text><bytes>:<text>…", for a
-- payload must stay what it is. A job is such a list: its queue ('' for this one), id, payload,
-- priority, due as for enqueue, names and values of further fields.
local function texts_of(list)
  local texts, at = {}, 1
  while at <= #list do
    local size, from = string.match(list, '^(%d+):()', at)
    local to = size and #size < 10 and from + size - 1
    if not to or to > #list then
      return {}
    end
    texts[#texts + 1] = string.sub(list, from, to)
    at = to + 1
  end
  return texts
end

-- The jobs in a field of the row `id` that are not there yet; `said` is what the job leaves them.
local function hung(id, field, said)
  local jobs_hung = {}
  for _, text in ipairs(texts_of(redis.call('HGET', jobs .. id, field) or '')) do
    local job = texts_of(text)
    if #job >= 5 and #job <= 99 and #job % 2 == 1 and string.match(job[2], '^JOB%w+$')
      and string.match(job[4], '^-?%d+$') and string.match(job[5], '^%+?%d*$')
      and redis.call('EXISTS', jobs .. job[2]) == 0 then
      job[3] = job[3] .. '\n{"id":' .. cjson.encode(id) .. ',' .. said .. '}'
      jobs_hung[#jobs_hung + 1] = job
    end
  end
  return jobs_hung
end

-- Whether what `admit` writes to has the right type; looked at before the first write.
local function check_types()
  redis.call('ZCARD', pending)
  redis.call('ZCARD', schedule)
  redis.call('LLEN', wake)
  redis.call('HLEN', onward)
end

-- Admit them: here, or by way of `onward` where they belong to another queue, since that may be on
-- another server. Answers their ids.
local function admit(id, jobs_hung)
  local ids, ready = {}, 0
  for _, job in ipairs(jobs_hung) do
    local due = string.match(job[5], '^%+(%d+)$')
    due = due and now + due or tonumber(job[5]) or 0
    local fields = {'after', id, unpack(job, 6)}
    for i = 3, #fields, 2 do  -- an expiry is a time like due
      local ms = fields[i] == 'expires_at' and string.match(fields[i + 1], '^%+(%d+)$')
      fields[i + 1] = ms and string.format('%.0f', now + ms) or fields[i + 1]
    end
    ids[#ids + 1] = job[2]
    if job[1] ~= '' then
      local list = {job[1], job[2], job[3], job[4], string.format('%.0f', due), unpack(fields)}
      for i, text in ipairs(list) do
        list[i] = #text .. ':' .. text
      end
      redis.call('HSET', onward, job[2], table.concat(list))
    else
      local state = due > now and 'scheduled' or 'pending'
      if job[4] ~= '0' then
        fields[#fields + 1], fields[#fields + 2] = 'priority', job[4]
      end
      redis.call('HSET', jobs .. job[2], 'state', state, 'attempts', '0', 'payload', job[3],
        unpack(fields))
      redis.call('ZADD', due > now and schedule or pending, due > now and due or 0 - job[4], job[2])
      ready = ready + 1
    end
  end
  if ready > 0 and redis.call('LLEN', wake) == 0 then
    redis.call('LPUSH', wake, '1')
  end
  tally('enqueued', ready)
  return ids
end

-- Admit what hangs on the failure of a job that is dead now: once, also when it has another life.
local function admit_after(id, nexts)
  local ids = admit(id, nexts)
  if #ids > 0 then
    redis.call('HDEL', jobs .. id, 'on_failure')
    redis.call('HSET', jobs .. id, 'next', table.concat(ids, ' '))
  end
  for _, next_id in ipairs(ids) do
    note('admitted', next_id, '0', 'after the failure of job ' .. id)
  end
end

-- The row's attempts, priority, stalls, max_stalls and worker; or false and why it is not sound.
local function read_held(id)
  local row = redis.pcall('HMGET', jobs .. id,
    'attempts', 'priority', 'stalls', 'max_stalls', 'worker')
  if row.err then
    return false, 'damaged row: the key holds a ' .. redis.call('TYPE', jobs .. id).ok
  elseif not row[1] then
    return false, 'damaged row: it is missing, or has no attempts'
  elseif #row[1] > 15 or row[1] ~= '0' and not string.match(row[1], '^[1-9]%d*$') then
    return false, 'damaged row: attempts is no whole number'
  end
  return row
end

local function move_damaged(id, reason)
  local row = jobs .. id
  if redis.call('TYPE', row).ok ~= 'hash' then
    redis.call('DEL', row)
  end
  redis.call('HSET', row, 'state', 'dead', 'last_error', reason, 'finished_at', now)
  redis.call('HSETNX', row, 'attempts', '0')
  redis.call('ZADD', dead, now, id)
  free(id)
end

-- Read and decide.
local lapsed = redis.call('ZRANGEBYSCORE', active, '-inf', now, 'LIMIT', 0, batch)
redis.call('ZCARD', pending)
redis.call('ZCARD', dead)
redis.call('LLEN', wake)
local rows, nexts = {}, {}
for i, id in ipairs(lapsed) do
  local row, reason = read_held(id)
  rows[i] = row or reason
  if row then
    row.stalls = whole(row[3], 0) + 1
    if row.stalls >= whole(row[4], max_stalls) then
      row.why = 'stalled: the worker was lost or its lease lapsed ' .. row.stalls .. ' times'
      nexts[id] = hung(id, 'on_failure', '"error":' .. cjson.encode(row.why))
      if #nexts[id] > 0 then
        check_types()
      end
    end
  end
end

-- Write.
if #lapsed > 0 then
  redis.call('ZREM', active, unpack(lapsed))
end
local ready, back, died = {}, {}, {}
for i, id in ipairs(lapsed) do
  local row = rows[i]
  if type(row) ~= 'table' then
    move_damaged(id, row)
    died[#died + 1] = id
    tell(id, 'dead')
    note('died', id, '', row)
  else
    local stalls = row.stalls
    if row.why then
      redis.call('HSET', jobs .. id, 'state', 'dead', 'stalls', stalls, 'finished_at', now,
        'last_error', row.why)
      redis.call('ZADD', dead, now, id)
      free(id)
      died[#died + 1] = id
      tell(id, 'dead')
      note('died', id, row[1], 'lease of ' .. (row[5] or '?') .. ' lapsed, stall ' .. stalls)
      admit_after(id, nexts[id])
    else
      redis.call('HSET', jobs .. id, 'state', 'pending', 'stalls', stalls)
      ready[#ready + 1] = 0 - whole(row[2], 0)
      ready[#ready + 1] = id
      back[#back + 1] = id
      note('reaped', id, row[1], 'lease of ' .. (row[5] or '?') .. ' lapsed, stall ' .. stalls)
    end
  end
end
if #ready > 0 then
  redis.call('ZADD', pending, unpack(ready))
  if redis.call('LLEN', wake) == 0 then
    redis.call('LPUSH', wake, '1')
  end
end
keep_cap()
tally('reaped', #back)
tally('dead', #died)
local first = redis.call('ZRANGE', active, 0, 0, 'WITHSCORES')[2]
first = first and math.max(tonumber(first) - now, 0) or -1
return {first, back, died, redis.call('HLEN', onward), until_tick()}
