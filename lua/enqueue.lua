-- enqueue.lua: admit jobs, once each.
--
-- KEYS[1] pending   zset    ids ready to run, scored by -priority
-- KEYS[2] schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[3] wake      list    readiness tokens
-- KEYS[4] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[5] sent      string  the last request of this producer and its verdicts
-- KEYS[6] repeat    zset    only for a tick: names of schedules, scored by their next time in ms
-- KEYS[7] record    hash    only for a tick: what is known of its schedule
--
-- ARGV[1]  jobs     prefix of the rows
-- ARGV[2]  request  id of this call; the same id again is answered, not carried out
-- ARGV[3]  sent_ms  how long the request is remembered
-- ARGV[4]  void_at  ms since 1970 after which the call is void, '' for never
-- ARGV[5]  tick     '' for none: '<was> <next> <planned> <rule> <name>', the next time that the
--                   schedule has if nobody has made this tick, the one that it shall have, which
--                   time the job stands for, and what the schedule is. was and next are '-' for a
--                   run between two times
-- ARGV[6…] a job:   id, payload, priority, due ('' now, '+ms' from now, 'ms' since 1970),
--                   number of further fields, and each field's name and value; expires_at is
--                   a time like due
--
-- Returns one verdict a job: 1 enqueued, 0 duplicate (the row is there; nothing changed).
-- Errors  EMQKIND when the id does not start with JOB,
--         EMQROW when the row's key holds something that is not a row;
--         EMQLATE, for the whole call, when it is void; nothing is changed;
--         EMQSTATE, the same, for a tick that was made, that is not due, or whose schedule is
--         gone or has changed.

local pending, schedule, wake, metrics, sent = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local jobs, request, sent_ms, void_at, tick = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local REFUSALS = {
  K = 'EMQKIND job id must start with JOB',
  R = 'EMQROW the key of this row holds something else',
}

local function answer(verdicts)
  local reply = {}
  for i = 1, #verdicts do
    local verdict = string.sub(verdicts, i, i)
    if REFUSALS[verdict] then
      reply[i] = redis.error_reply(REFUSALS[verdict])
    else
      reply[i] = tonumber(verdict)
    end
  end
  return reply
end

local last = redis.call('GET', sent)
if last and string.sub(last, 1, #request + 1) == request .. ' ' then
  -- A write, so that who waits for replicas waits for what the first call wrote.
  redis.pcall('EXPIRE', sent, math.ceil(sent_ms / 1000))
  return answer(string.sub(last, #request + 2))
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
  local score, is = redis.call('ZSCORE', KEYS[6], name), redis.call('HGET', KEYS[7], 'rule')
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

local first_due = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')[2]
redis.call('ZCARD', pending)
local awake = redis.call('LLEN', wake)

-- Read and decide.
local verdicts, rows, ready, waiting = {}, {}, {}, {}
local seen, earlier = {}, false
local at = 6
while at <= #ARGV do
  local id, payload, priority, due, extra =
    ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], tonumber(ARGV[at + 4])
  local row = jobs .. id
  local verdict
  if string.sub(id, 1, 3) ~= 'JOB' then
    verdict = 'K'
  elseif seen[id] then
    verdict = '0'
  elseif redis.call('EXISTS', row) == 1 then
    verdict = redis.call('TYPE', row).ok == 'hash' and '0' or 'R'
  else
    verdict = '1'
    seen[id] = true
    if string.sub(due, 1, 1) == '+' then
      due = now + tonumber(string.sub(due, 2))
    else
      due = tonumber(due) or 0
    end
    local fields = {row, 'state', 'pending', 'attempts', '0', 'payload', payload}
    if due > now then
      fields[3] = 'scheduled'
      waiting[#waiting + 1] = due
      waiting[#waiting + 1] = id
      earlier = earlier or not first_due or due < tonumber(first_due)
    else
      ready[#ready + 1] = 0 - tonumber(priority)
      ready[#ready + 1] = id
    end
    if priority ~= '0' then
      fields[8], fields[9] = 'priority', priority
    end
    for i = at + 5, at + 4 + 2 * extra, 2 do
      local name, value = ARGV[i], ARGV[i + 1]
      if name == 'expires_at' and string.sub(value, 1, 1) == '+' then
        value = string.format('%.0f', now + tonumber(string.sub(value, 2)))
      end
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
    rows[#rows + 1] = fields
  end
  verdicts[#verdicts + 1] = verdict
  at = at + 5 + 2 * extra
end

-- Write.
for _, fields in ipairs(rows) do
  redis.call('HSET', unpack(fields))
end
if #ready > 0 then
  redis.call('ZADD', pending, unpack(ready))
end
if #waiting > 0 then
  redis.call('ZADD', schedule, unpack(waiting))
end
if awake == 0 and (#ready > 0 or earlier) then
  redis.call('LPUSH', wake, '1')
end
if name then
  if was ~= '-' then
    redis.call('ZADD', KEYS[6], next_ms, name)
  end
  redis.call('HSET', KEYS[7], 'last_planned', planned, 'last_at', now)
  if #rows > 0 then
    redis.call('HSET', KEYS[7], 'last_job', ARGV[6])
  end
end
tally('enqueued', #rows)
verdicts = table.concat(verdicts)
redis.call('SET', sent, request .. ' ' .. verdicts, 'PX', sent_ms)
return answer(verdicts)
