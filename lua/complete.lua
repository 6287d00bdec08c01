-- complete.lua: retire jobs that the caller still holds.
--
-- KEYS[1] active   zset    leased ids, scored by lease expiry in ms
-- KEYS[2] pending  zset    ids ready to run, scored by -priority
-- KEYS[3] done     zset    finished ids whose row is kept, scored by the end of its time in ms
-- KEYS[4] metrics  hash    counters; metrics:<minute> stands beside it
-- KEYS[5] trail    stream  what happened; capped
-- KEYS[6] schedule zset    ids waiting for a time; for the jobs of a chain, as are the next two
-- KEYS[7] wake     list    readiness tokens
-- KEYS[8] onward   hash    jobs of chains that are to be admitted to other queues
--
-- ARGV[1]  jobs       prefix of the rows
-- ARGV[2]  trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[3]  trail_all  the same for jobs that end well
-- ARGV[4]  keep_ms    how long the rows are kept with their results; 0 deletes them
-- ARGV[5…] a job:     id, token (the number that claim handed out), result ('' for none)
--
-- Returns one verdict a job: 1 retired (also when this token has retired it before),
--         0 when its row is gone.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it.
--
-- A lease that lapsed and was swept, but was not claimed again, may still be completed: the
-- work is done, and the id leaves pending in this step.
--
-- A row with the field 'ties' has something beside it that its end concerns (log lines, who waits
-- for it, the next job of a chain, a unique key); all other rows pay for no look at such things.

local active, pending, done, metrics, trail = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local schedule, wake, onward = KEYS[6], KEYS[7], KEYS[8]
local jobs, trail_max, trail_all = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local keep_ms = tonumber(ARGV[4])

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

local ids, keys = {}, {}
for at = 5, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local leases = redis.call('ZMSCORE', active, unpack(ids))
redis.call('ZCARD', pending)
redis.call('ZCARD', done)

-- Read and decide.
local verdicts, held, swept, finished, seen = {}, {}, {}, {}, {}
local refused, tied, left, chained = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local token = ARGV[3 * i + 3]
  local key = jobs .. id
  local row = redis.pcall('HMGET', key, 'attempts', 'settled', 'ties')
  local reason
  if row.err or not row[1] then
    verdicts[i] = 0
  elseif row[1] ~= token or token == '0' then
    reason = 'token mismatch'
  elseif row[2] then
    if row[2] == 'complete' then
      verdicts[i] = 1
    else
      reason = 'not held, settled before by ' .. row[2]
    end
  elseif seen[id] then
    verdicts[i] = 1
  elseif leases[i] then
    held[#held + 1] = id
  elseif redis.call('ZSCORE', pending, id) then
    swept[#swept + 1] = id
  else
    reason = 'not held'
  end
  if reason then
    refused[#refused + 1] = {id, row[1], reason, token}
    verdicts[i] = redis.error_reply(
      'EMQSTALE complete ' .. reason .. ' (yours ' .. token .. ', row ' .. row[1] .. ')')
  elseif not verdicts[i] then
    verdicts[i] = 1
    seen[id] = true
    finished[#finished + 1] = i
    keys[#keys + 1] = key
    if row[3] then
      tied[#tied + 1] = id
      left[id] = ARGV[3 * i + 4]
    end
  end
end

-- Chains (docs/chains.md): what hangs on the end of a job is admitted by the step that ends it, so
-- that no crash comes between. Lists of texts are written "<bytes>:<text><bytes>:<text>…", for a
-- payload must stay what it is. A job is such a list: its queue ('' for this one), id, payload,
-- priority, due as for enqueue, names and values of further fields.
-- All of it is defined only where a row names more: the others would pay for it.
local admit
if #tied > 0 then
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
  function admit(id, jobs_hung)
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
        redis.call('ZADD', due > now and schedule or pending, due > now and due or 0 - job[4],
          job[2])
        ready = ready + 1
      end
    end
    if ready > 0 and redis.call('LLEN', wake) == 0 then
      redis.call('LPUSH', wake, '1')
    end
    tally('enqueued', ready)
    return ids
  end

  for _, id in ipairs(tied) do
    local nexts = hung(id, 'on_success', '"value":' .. (left[id] == '' and 'null' or left[id]))
    if #nexts > 0 then
      check_types()
      chained[#chained + 1] = {id, nexts}
    end
  end
end

-- Write.
if #held > 0 then
  redis.call('ZREM', active, unpack(held))
end
if #swept > 0 then
  redis.call('ZREM', pending, unpack(swept))
end
for _, id in ipairs(tied) do  -- unique keys, and who waits
  free(id)
  tell(id, 'done')
end
if keep_ms > 0 then
  local kept = {}
  for _, i in ipairs(finished) do
    redis.call('HSET', jobs .. ids[i], 'state', 'done', 'settled', 'complete',
      'finished_at', now, 'result', ARGV[3 * i + 4])
    kept[#kept + 1] = now + keep_ms
    kept[#kept + 1] = ids[i]
  end
  if #kept > 0 then
    redis.call('ZADD', done, unpack(kept))
  end
elseif #finished > 0 then
  for _, id in ipairs(tied) do
    keys[#keys + 1] = jobs .. id .. ':logs'
  end
  redis.call('DEL', unpack(keys))
end
for _, link in ipairs(chained) do
  local id, ids = link[1], admit(link[1], link[2])
  if keep_ms > 0 then
    redis.call('HDEL', jobs .. id, 'on_success', 'on_failure')
    redis.call('HSET', jobs .. id, 'next', table.concat(ids, ' '))
  end
  for _, next_id in ipairs(trail_all > 0 and ids or {}) do
    note('admitted', next_id, '0', 'after the success of job ' .. id)
  end
end
tally('completed', #finished)
tally('stale', #refused)
for _, refusal in ipairs(refused) do
  note('refused', refusal[1], refusal[2], 'complete ' .. refusal[3], refusal[4])
end
if trail_all > 0 then
  for _, i in ipairs(finished) do
    note('completed', ids[i], ARGV[3 * i + 3], '')
  end
end
return verdicts
