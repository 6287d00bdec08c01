-- audit.lua: look at the books of some jobs at one instant, and mend them where asked.
--
-- KEYS[1] pending   zset    ids ready to run, scored by -priority
-- KEYS[2] active    zset    leased ids, scored by lease expiry in ms
-- KEYS[3] schedule  zset    ids waiting for a time, scored by due time in ms
-- KEYS[4] dead      zset    the morgue, scored by time of death in ms
-- KEYS[5] done      zset    finished ids whose row is kept, scored by the end of its time in ms
-- KEYS[6] wake      list    readiness tokens
-- KEYS[7] metrics   hash    counters; metrics:<minute> stands beside it
-- KEYS[8] trail     stream  what happened; capped
--
-- ARGV[1]  jobs       prefix of the rows
-- ARGV[2]  from       the set in which the ids were found; '' when their rows were
-- ARGV[3]  mend       '1' to mend what is found
-- ARGV[4]  lease_ms   the lease that a job gets in place of one that is no lease
-- ARGV[5]  trail_max  entries that the trail keeps, about; 0 for no trail
-- ARGV[6…]            ids
--
-- Returns {id, kind, remedy, reason, {set, score, …}, {type, state, attempts, bytes, worker}} for
--         each id with something wrong. With `mend` it has been mended, unless remedy is 'none'.
--         An id is reported from the first of its sets only, and from its row when it is in none.
--
-- No job is lost by mending: what may still run goes back to pending, what cannot goes to the
-- morgue with a reason, and only an id without a row is dropped.

local wake, metrics, trail = KEYS[6], KEYS[7], KEYS[8]
local jobs, from, mend = ARGV[1], ARGV[2], ARGV[3] == '1'
local lease_ms, trail_max = tonumber(ARGV[4]), tonumber(ARGV[5])
local ids = {unpack(ARGV, 6)}

local SETS = {'pending', 'active', 'schedule', 'dead', 'done'}
local STATES = {'pending', 'active', 'scheduled', 'dead', 'done'}
local PENDING, ACTIVE, SCHEDULE, DEAD, DONE = 1, 2, 3, 4, 5
local DAY, YEAR, YEAR_10000 = 86400000, 366 * 86400000, 253402300800000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local usable = {}
for i = 1, 5 do
  local kind = redis.call('TYPE', KEYS[i]).ok
  usable[i] = kind == 'zset' or kind == 'none'
end

-- A row's number, or the default where there is none: what a stranger wrote may be no number.
local function whole(text, default)
  return text and #text < 16 and string.match(text, '^-?%d+$') and tonumber(text) or default
end

local function read_places(id)
  local places = {}
  for i = 1, 5 do
    local score = usable[i] and redis.call('ZSCORE', KEYS[i], id)
    if score then
      places[#places + 1] = {i, score}
    end
  end
  return places
end

local function read_row(id)
  local key = jobs .. id
  local row = redis.pcall('HMGET', key,
    'state', 'attempts', 'settled', 'worker', 'priority', 'finished_at', 'behind')
  if row.err then
    return {type = redis.call('TYPE', key).ok}
  end
  local bytes = redis.call('HSTRLEN', key, 'payload')
  local there = row[1] or row[2] or bytes > 0 or redis.call('EXISTS', key) == 1
  return {type = there and 'hash' or 'none', state = row[1], attempts = row[2], settled = row[3],
    worker = row[4], priority = row[5], finished_at = row[6], behind = row[7], bytes = bytes}
end

-- Whether a job is still to end.
local function lives(id)
  for set = PENDING, SCHEDULE do
    if usable[set] and redis.call('ZSCORE', KEYS[set], id) then
      return true
    end
  end
end

-- Why no worker can be given this row; or nothing.
local function damage(id, row)
  local attempts = row.attempts
  if row.type ~= 'hash' then
    return 'damaged row: the key holds a ' .. row.type
  elseif #id > 32 or not string.match(id, '^JOB%w+$') then
    return 'damaged entry: this is no job id'
  elseif not attempts or #attempts > 15
    or attempts ~= '0' and not string.match(attempts, '^[1-9]%d*$') then
    return 'damaged row: attempts is no whole number'
  elseif row.bytes == 0 then
    return 'damaged row: payload is missing'
  end
end

-- Kind, remedy and reason for a row that is in no set.
local function judge_orphan(row, broken)
  if row.state == 'dead' and row.type == 'hash' then
    return 'no-set', DEAD
  elseif broken then
    return 'no-set', DEAD, broken
  elseif row.state == 'done' or row.settled == 'complete' then
    return 'no-set', DONE
  elseif row.state == 'scheduled' and row.settled ~= 'retry' then
    return 'no-set', DEAD, 'damaged: the job was in no set, and its due time is lost'
  end
  return 'no-set', PENDING
end

-- Whether a score is no time that this set can have.
local function is_odd(set, score)
  score = tonumber(score)
  if set == ACTIVE or set == DONE then
    return score > now + YEAR
  end
  return set == SCHEDULE and score >= YEAR_10000 or set == DEAD and score > now + DAY
end

-- Kind, remedy (the set where the job shall be; 0 for none) and reason; nothing when all is well.
local function judge(id, places, row)
  if row.type == 'none' then
    if #places > 0 then
      return 'no-row', 0
    end
    return
  end
  local broken = damage(id, row)
  if #places == 0 then
    return judge_orphan(row, broken)
  elseif row.type ~= 'hash' then
    return 'damaged', DEAD, broken
  elseif #places > 1 then
    local keep = places[1][1] == PENDING and places[2][1] == ACTIVE and ACTIVE or places[1][1]
    for _, place in ipairs(places) do
      if STATES[place[1]] == row.state then
        keep = place[1]
      end
    end
    return 'two-sets', keep
  end
  local set, score = places[1][1], places[1][2]
  if broken and set < DEAD then  -- what is dead or done runs no more
    return 'damaged', DEAD, broken
  elseif set == ACTIVE and row.attempts == '0' then
    return 'token', PENDING
  elseif is_odd(set, score) then
    if set == SCHEDULE then
      return 'time', DEAD, 'damaged: it was due in ' .. score .. ' ms since 1970'
    end
    return 'time', set
  elseif row.state ~= STATES[set] then
    return 'state', set
  elseif set == SCHEDULE and row.behind and not lives(row.behind) then
    return 'behind', PENDING
  end
end

local SCORES = {
  [PENDING] = function(row) return 0 - whole(row.priority, 0) end,
  [ACTIVE] = function() return now + lease_ms end,
  [DEAD] = function(row)
    local at = whole(row.finished_at, 0)
    return at > 0 and at < now and at or now
  end,
  [DONE] = function() return now + DAY end,
}

local function apply(id, places, row, target, reason)
  local key, there = jobs .. id, false
  for _, place in ipairs(places) do
    if place[1] ~= target then
      redis.call('ZREM', KEYS[place[1]], id)
    elseif target == SCHEDULE or not is_odd(place[1], place[2]) then
      there = true
    end
  end
  if target == 0 then
    return
  end
  if row.type ~= 'hash' then
    redis.call('DEL', key)
  else
    redis.call('HDEL', key, '')  -- begins the writes, so that a full server lets them pass
  end
  redis.call('HSET', key, 'state', STATES[target])
  if row.behind and target ~= SCHEDULE then
    redis.call('HDEL', key, 'behind', 'due')
  end
  if target == DEAD then
    redis.call('HSETNX', key, 'attempts', '0')
    redis.call('HSETNX', key, 'finished_at', now)
    if reason then
      redis.call('HSET', key, 'last_error', reason, 'finished_at', now)
    end
  end
  if not there then
    redis.call('ZADD', KEYS[target], SCORES[target](row), id)
  end
  if target == PENDING and redis.pcall('LLEN', wake) == 0 then
    redis.pcall('LPUSH', wake, '1')
  end
end

local function note(id, token, text)
  if trail_max > 0 then
    redis.pcall('XADD', trail, 'MAXLEN', '~', trail_max, '*', 'event', 'mended', 'id', id,
      'token', token, 'note', text)
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

-- Mend until nothing is wrong with the id: what was in two sets may be damaged besides.
local function put_right(id)
  for _ = 1, 4 do
    local places, row = read_places(id), read_row(id)
    local kind, target, reason = judge(id, places, row)
    if not kind then
      return
    end
    apply(id, places, row, target, reason)
    note(id, row.attempts or '', kind .. ' > ' .. (SETS[target] or 'gone'))
  end
end

local function report(id, places, row, kind, remedy, reason)
  local sets = {}
  for _, place in ipairs(places) do
    sets[#sets + 1] = SETS[place[1]]
    sets[#sets + 1] = place[2]
  end
  local state = string.sub(row.state or '', 1, 100)
  local attempts = string.sub(row.attempts or '', 1, 100)
  local worker = string.sub(row.worker or '', 1, 100)
  local about = {row.type, state, attempts, row.bytes or 0, worker}
  return {id, kind, remedy, reason or '', sets, about}
end

-- In which sets each id is, for all ids at once.
local scores = {}
for i = 1, 5 do
  scores[i] = usable[i] and redis.call('ZMSCORE', KEYS[i], unpack(ids)) or {}
end

local found, mended = {}, 0
for at, id in ipairs(ids) do
  local places = {}
  for i = 1, 5 do
    if scores[i][at] then
      places[#places + 1] = {i, scores[i][at]}
    end
  end
  local first = places[1] and SETS[places[1][1]] or ''
  if first == from then
    local row = read_row(id)
    local kind, target, reason = judge(id, places, row)
    if kind then
      local can = target == 0 or usable[target]
      found[#found + 1] =
        report(id, places, row, kind, can and (SETS[target] or 'drop') or 'none', reason)
      if can and mend then
        put_right(id)
        mended = mended + 1
      end
    end
  end
end
tally('mended', mended)
return found
