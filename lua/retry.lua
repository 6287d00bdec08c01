-- retry.lua: count a failure and run the job again later, or put it into the morgue.
--
-- KEYS[1] active    zset    leased ids, scored by lease expiry in ms
-- KEYS[2] schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[3] dead      zset    the morgue, scored by time of death in ms
-- KEYS[4] wake      list    readiness tokens
-- KEYS[5] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[6] trail     stream  what happened; capped
-- KEYS[7] pending   zset    ids ready to run; for the jobs of a chain, as is the next
-- KEYS[8] onward    hash    jobs of chains that are to be admitted to other queues
--
-- ARGV[1]  jobs          prefix of the rows
-- ARGV[2]  trail_max     entries that the trail keeps, about; 0 for no trail
-- ARGV[3]  max_attempts  failures before the morgue, unless the row has its own
-- ARGV[4]  dead_max      how many dead jobs are kept; the oldest go first
-- ARGV[5…] a job:        id, token, delay in ms, error, traceback
--
-- Returns one verdict a job: 'scheduled' or 'dead'; the same again when this token has had it.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQGONE when the row is gone.

local active, schedule, dead = KEYS[1], KEYS[2], KEYS[3]
local wake, metrics, trail = KEYS[4], KEYS[5], KEYS[6]
local pending, onward = KEYS[7], KEYS[8]
local jobs, trail_max, max_attempts = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local dead_max = tonumber(ARGV[4])

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

-- The errors so far and one more, as a line of JSON, for rows that keep them: the newest ones.
local function errors_with(kept, verb, message, traceback)
  kept = kept .. cjson.encode({verb, message, traceback}) .. '\n'
  while #kept > 65536 do
    local rest = string.sub(kept, string.find(kept, '\n', 1, true) + 1)
    if rest == '' then
      break
    end
    kept = rest
  end
  return kept
end

local ids = {}
for at = 5, #ARGV, 5 do
  ids[#ids + 1] = ARGV[at]
end
local leases = redis.call('ZMSCORE', active, unpack(ids))

-- Read and decide.
local verdicts, moves, seen, refused = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local at = 5 + 5 * (i - 1)
  local token = ARGV[at + 1]
  local row = redis.pcall('HMGET', jobs .. id,
    'attempts', 'settled', 'failures', 'max_attempts', 'state', 'errors')
  local reason
  if row.err or not row[1] then
    verdicts[i] = redis.error_reply('EMQGONE retry job gone')
  elseif row[1] ~= token then
    reason = 'token mismatch'
  elseif row[2] == 'retry' then
    verdicts[i] = row[5] == 'dead' and 'dead' or 'scheduled'
  elseif seen[id] then
    verdicts[i] = seen[id]
  elseif not leases[i] then
    reason = row[2] and 'not held, settled before by ' .. row[2] or 'not held'
  else
    local failures = whole(row[3], 0) + 1
    local dies = failures >= whole(row[4], max_attempts)
    verdicts[i] = dies and 'dead' or 'scheduled'
    seen[id] = verdicts[i]
    local nexts = {}
    if dies then
      nexts = hung(id, 'on_failure', '"error":' .. cjson.encode(ARGV[at + 3]))
      if #nexts > 0 then
        check_types()
      end
    end
    moves[#moves + 1] = {id, failures, dies, at, token, row[6], nexts}
  end
  if reason then
    refused[#refused + 1] = {id, row[1], reason, token}
    verdicts[i] = redis.error_reply(
      'EMQSTALE retry ' .. reason .. ' (yours ' .. token .. ', row ' .. row[1] .. ')')
  end
end
redis.call('ZCARD', dead)
redis.call('LLEN', wake)
local first_due = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2]
first_due = tonumber(first_due) or math.huge

-- Write.
local deaths, earlier = 0, false
for _, move in ipairs(moves) do
  local id, failures, dies, at, token = move[1], move[2], move[3], move[4], move[5]
  local delay_ms, message, traceback = tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  redis.call('ZREM', active, id)
  redis.call('HSET', jobs .. id, 'settled', 'retry', 'failures', failures,
    'last_error', message)
  if traceback ~= '' then
    redis.call('HSET', jobs .. id, 'traceback', traceback)
  end
  if move[6] then
    redis.call('HSET', jobs .. id, 'errors', errors_with(move[6], 'retry', message, traceback))
  end
  if dies then
    redis.call('HSET', jobs .. id, 'state', 'dead', 'finished_at', now)
    redis.call('ZADD', dead, now, id)
    free(id)
    deaths = deaths + 1
    note('died', id, token, message)
    tell(id, 'dead')
    admit_after(id, move[7])
  else
    redis.call('HSET', jobs .. id, 'state', 'scheduled')
    redis.call('ZADD', schedule, now + delay_ms, id)
    earlier = earlier or now + delay_ms < first_due
    note('failed', id, token, message)
  end
end
keep_cap()
if earlier and redis.call('LLEN', wake) == 0 then
  redis.call('LPUSH', wake, '1')
end
tally('failed', #moves)
tally('retried', #moves - deaths)
tally('dead', deaths)
tally('stale', #refused)
for _, refusal in ipairs(refused) do
  note('refused', refusal[1], refusal[2], 'retry ' .. refusal[3], refusal[4])
end
return verdicts
