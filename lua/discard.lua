-- discard.lua: drop held jobs, as the task asked; nothing of them remains.
--
-- KEYS[1] active   zset    leased ids, scored by lease expiry in ms
-- KEYS[2] metrics  hash    counters; metrics:<minute> stands beside it
-- KEYS[3] trail    stream  what happened; capped
--
-- ARGV[1]  jobs       prefix of the rows
-- ARGV[2]  trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[3…] a job:     id, token
--
-- Returns one verdict a job: 1 dropped.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQGONE when the row is gone.

local active, metrics, trail = KEYS[1], KEYS[2], KEYS[3]
local jobs, trail_max = ARGV[1], tonumber(ARGV[2])

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

local ids = {}
for at = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[at]
end
local leases = redis.call('ZMSCORE', active, unpack(ids))

-- Read and decide.
local verdicts, moves, seen, refused = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local at = 3 + 2 * (i - 1)
  local token = ARGV[at + 1]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'settled')
  local reason
  if row.err or not row[1] then
    verdicts[i] = redis.error_reply('EMQGONE discard job gone')
  elseif row[1] ~= token then
    reason = 'token mismatch'
  elseif row[2] == 'discard' or seen[id] then
    verdicts[i] = 1
  elseif not leases[i] then
    reason = row[2] and 'not held, settled before by ' .. row[2] or 'not held'
  else
    seen[id] = true
    verdicts[i] = 1
    moves[#moves + 1] = id
  end
  if reason then
    refused[#refused + 1] = {id, row[1], reason, token}
    verdicts[i] = redis.error_reply(
      'EMQSTALE discard ' .. reason .. ' (yours ' .. token .. ', row ' .. row[1] .. ')')
  end
end

-- Write.
for _, id in ipairs(moves) do
  redis.call('ZREM', active, id)
  free(id)
  tell(id, 'discarded')
  redis.call('DEL', jobs .. id, jobs .. id .. ':logs')
end
tally('discarded', #moves)
tally('stale', #refused)
for _, refusal in ipairs(refused) do
  note('refused', refusal[1], refusal[2], 'discard ' .. refusal[3], refusal[4])
end
return verdicts
