-- enqueue_unique.lua: admit jobs, once each, some of which have a key that one job holds at a time.
--
-- KEYS[1] pending   zset    ids ready to run, scored by -priority
-- KEYS[2] schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[3] active    zset    leased ids, scored by lease expiry in ms
-- KEYS[4] wake      list    readiness tokens
-- KEYS[5] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[6] sent      string  the last request of this producer and its verdicts
-- KEYS[7] trail     stream  what happened; capped
-- KEYS[8] repeat    zset    only for a tick: names of schedules, scored by their next time in ms
-- KEYS[9] record    hash    only for a tick: what is known of its schedule
--
-- ARGV[1]  jobs       prefix of the rows
-- ARGV[2]  request    id of this call; the same id again is answered, not carried out
-- ARGV[3]  sent_ms    how long the request is remembered
-- ARGV[4]  void_at    ms since 1970 after which the call is void, '' for never
-- ARGV[5]  uniques    prefix of the unique keys
-- ARGV[6]  trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[7]  trail_all  the same for what is nothing special
-- ARGV[8]  tick       as for enqueue
-- ARGV[9…] a job:     id, payload, priority, due ('' now, '+ms' from now, 'ms' since 1970),
--                     digest of its key ('' for none), until when it holds the key ('start',
--                     'finish', or 'time'), hold_ms (for 'time'), what a conflict leads to
--                     ('reject', 'replace', 'keep_last', 'throttle', 'debounce'), max_wait_ms (for
--                     debounce), number of further fields, and each field's name and value
--
-- Returns one verdict a job: '1' enqueued; '0' duplicate (the row is there; nothing changed);
--         'duplicate <id>': that job holds the key, and this one did not come in; 'replaced <id>':
--         this one came in, and that one, which was still to run, is gone; 'behind <id>': this one
--         waits until that one, which holds the key, has ended.
-- Errors  EMQKIND when the id does not start with JOB,
--         EMQROW when the row's key holds something that is not a row;
--         EMQLATE, for the whole call, when it is void; nothing is changed;
--         EMQSTATE, the same, for a tick that was made, that is not due, or whose schedule is
--         gone or has changed.
--
-- The jobs of a call come in one after the other, as if each had a call of its own. A key counts
-- as long as its job is still to end (for 'start': to be claimed for the first time), or for its
-- time to live, if it has one: so a key that was left behind blocks nothing.

local pending, schedule, active, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local metrics, sent, trail = KEYS[5], KEYS[6], KEYS[7]
local jobs, request, sent_ms, void_at = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local uniques, trail_max, trail_all = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local tick = ARGV[8]

local TEN_YEARS = 315360000000  -- what waits behind another job has no time of its own

local REFUSALS = {
  K = 'EMQKIND job id must start with JOB',
  R = 'EMQROW the key of this row holds something else',
}

local function answer_all(verdicts)
  local reply = {}
  for verdict in string.gmatch(verdicts, '[^,]+') do
    reply[#reply + 1] = REFUSALS[verdict] and redis.error_reply(REFUSALS[verdict]) or verdict
  end
  return reply
end

local last = redis.call('GET', sent)
if last and string.sub(last, 1, #request + 1) == request .. ' ' then
  -- A write, so that who waits for replicas waits for what the first call wrote.
  redis.pcall('EXPIRE', sent, math.ceil(sent_ms / 1000))
  return answer_all(string.sub(last, #request + 2))
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

if void_at ~= '' and now > tonumber(void_at) then
  return redis.error_reply('EMQLATE the call came too late')
end

-- A tick: of all who see that a time has come, one enqueues its job.
local was, next_ms, planned, rule, name
if tick ~= '' then
  was, next_ms, planned, rule, name = string.match(tick, '^(%S+) (%S+) (%S+) (%S+) (.+)$')
  local score, is = redis.call('ZSCORE', KEYS[8], name), redis.call('HGET', KEYS[9], 'rule')
  if not score or (is or '-') ~= rule then
    return redis.error_reply('EMQSTATE this schedule is gone, or it was changed')
  elseif was ~= '-' and tonumber(score) ~= tonumber(was) then
    return redis.error_reply('EMQSTATE this tick was made by somebody else')
  elseif was ~= '-' and tonumber(was) > now then
    return redis.error_reply('EMQSTATE this tick is not due')
  end
end

local function tally(name, n)
  if n > 0 then
    local minute = metrics .. ':' .. math.floor(now / 60000)
    redis.pcall('HINCRBY', metrics, name, n)
    redis.pcall('HINCRBY', minute, name, n)
    redis.pcall('EXPIRE', minute, 172800)
  end
end

local function note(event, id, token, text)
  if trail_max > 0 then
    redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*', 'event', event, 'id', id,
      'token', token, 'note', text)
  end
end

local first_due = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2]
redis.call('ZCARD', pending)
redis.call('ZCARD', active)
local awake = redis.call('LLEN', wake)
local came, replaced, duplicates, ring = 0, 0, 0, false

-- Who holds a key; nothing where it is free. `waits`: it is still to run; `heir`: who waits behind.
local function holder_of(key, digest)
  local id = redis.pcall('GET', key)
  if type(id) ~= 'string' then
    return
  end
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'unique', 'unique_since', 'heir')
  local whose, kind = string.match(row[2] or '', '^(%x+) (%a+)$')
  local waits = redis.call('ZSCORE', pending, id) or redis.call('ZSCORE', schedule, id)
  local lives = whose == digest and (waits or redis.call('ZSCORE', active, id))
  if lives and (kind ~= 'start' or row[1] == '0') then
    local behind = row[4] and redis.pcall('HGET', jobs .. row[4], 'behind') == id
    local heir = behind and redis.call('ZSCORE', schedule, row[4]) and row[4]
    return {id = id, row = true, waits = waits, fresh = row[1] == '0', since = tonumber(row[3]),
      heir = heir or nil}
  elseif redis.call('PTTL', key) > 0 then
    return {id = id, row = row[1]}
  end
end

-- Whom a new job replaces, and behind whom it waits; false when it does not come in.
local function settle(holder, conflict)
  if conflict == 'keep_last' and holder.waits ~= nil and not holder.fresh then
    return {holder.heir}, holder.id
  elseif holder.waits and (conflict == 'replace' or conflict == 'keep_last'
    or conflict == 'debounce') then
    return {holder.id, holder.heir}
  end
  return false
end

local function refuse(id, holder)
  duplicates = duplicates + 1
  -- The first one is worth a note: a thousand more would push all else out of the trail.
  local count = holder.row and redis.call('HINCRBY', jobs .. holder.id, 'duplicates', 1)
  if count == 1 or trail_all > 0 then
    note('duplicate', id, '', holder.id)
  end
  return 'duplicate ' .. holder.id
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

local function evict(id, heir, quiet)
  local token = redis.call('HGET', jobs .. id, 'attempts') or ''
  redis.call('ZREM', pending, id)
  redis.call('ZREM', schedule, id)
  tell(id, 'replaced')
  redis.call('DEL', jobs .. id, jobs .. id .. ':logs')
  replaced = replaced + 1
  if not quiet or trail_all > 0 then
    note('replaced', id, token, heir)
  end
end

local function write(id, at, due, fields, behind)
  local payload, priority, extra = ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 9])
  local waits = behind or due > now
  local row = {jobs .. id, 'state', waits and 'scheduled' or 'pending', 'attempts', '0',
    'payload', payload}
  if priority ~= '0' then
    row[#row + 1], row[#row + 2] = 'priority', priority
  end
  for i = at + 10, at + 9 + 2 * extra, 2 do
    local name, value = ARGV[i], ARGV[i + 1]
    if name == 'expires_at' and string.sub(value, 1, 1) == '+' then  -- a time like due
      value = string.format('%.0f', now + tonumber(string.sub(value, 2)))
    end
    row[#row + 1] = name
    row[#row + 1] = value
  end
  for _, field in ipairs(fields) do
    row[#row + 1] = field
  end
  redis.call('HSET', unpack(row))
  came = came + 1
  if behind then
    redis.call('HSET', jobs .. id, 'behind', behind, 'due', math.max(due, now))
    redis.call('HSET', jobs .. behind, 'heir', id)
    redis.call('ZADD', schedule, now + TEN_YEARS, id)
  elseif waits then
    redis.call('ZADD', schedule, due, id)
    ring = ring or not first_due or due < tonumber(first_due)
  else
    redis.call('ZADD', pending, 0 - tonumber(priority), id)
    ring = true
  end
end

local function due_of(text)
  if string.sub(text, 1, 1) == '+' then
    return now + tonumber(string.sub(text, 2))
  end
  return tonumber(text) or 0
end

local function admit(at)
  local id, due, digest, kind = ARGV[at], due_of(ARGV[at + 3]), ARGV[at + 4], ARGV[at + 5]
  local conflict = ARGV[at + 7]
  if string.sub(id, 1, 3) ~= 'JOB' then
    return 'K'
  elseif redis.call('EXISTS', jobs .. id) == 1 then
    return redis.call('TYPE', jobs .. id).ok == 'hash' and '0' or 'R'
  elseif digest == '' then
    write(id, at, due, {})
    return '1'
  end
  local key = uniques .. digest
  local holder = holder_of(key, digest)
  local gone, behind = {}, nil
  if holder then
    gone, behind = settle(holder, conflict)
  end
  if not gone then
    return refuse(id, holder)
  end
  local fields = {'unique', digest .. ' ' .. kind, 'ties', '1'}
  if conflict == 'debounce' then
    local since = holder and holder.since or now
    due = math.min(due, since + tonumber(ARGV[at + 8]))
    fields[5], fields[6] = 'unique_since', string.format('%.0f', since)
  end
  for i = 1, 2 do
    if gone[i] then
      evict(gone[i], id, conflict == 'debounce')
    end
  end
  write(id, at, due, fields, behind)
  if not behind then
    redis.call('SET', key, id)
    if kind == 'time' then
      redis.call('PEXPIRE', key, ARGV[at + 6])
    end
  end
  local other = gone[1] or gone[2]
  return other and 'replaced ' .. other or behind and 'behind ' .. behind or '1'
end

local verdicts = {}
local at = 9
while at <= #ARGV do
  verdicts[#verdicts + 1] = admit(at)
  at = at + 10 + 2 * tonumber(ARGV[at + 9])
end
if ring and awake == 0 then
  redis.call('LPUSH', wake, '1')
end
if name then
  if was ~= '-' then
    redis.call('ZADD', KEYS[8], next_ms, name)
  end
  redis.call('HSET', KEYS[9], 'last_planned', planned, 'last_at', now)
  if came > 0 then
    redis.call('HSET', KEYS[9], 'last_job', ARGV[9])
  end
end
tally('enqueued', came)
tally('duplicates', duplicates)
tally('replaced', replaced)
verdicts = table.concat(verdicts, ',')
redis.call('SET', sent, request .. ' ' .. verdicts, 'PX', sent_ms)
return answer_all(verdicts)
