-- extend.lua: prolong the leases of held jobs.
--
-- KEYS[1] active   zset  leased ids, scored by lease expiry in ms
-- KEYS[2] metrics  hash  counters; metrics:<minute> stands beside it
--
-- ARGV[1] jobs      prefix of the rows
-- ARGV[2] lease_ms  from now, unless the row has a lease_ms of its own; 0 ends every lease
-- ARGV[3…] a job:   id, token
--
-- Returns one verdict a job: 1 prolonged.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQGONE when the row is gone.

local active, metrics = KEYS[1], KEYS[2]
local jobs, lease_ms = ARGV[1], tonumber(ARGV[2])

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

local ids = {}
for at = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[at]
end
local leases = redis.call('ZMSCORE', active, unpack(ids))

-- Read and decide.
local verdicts, leased, stale = {}, {}, 0
for i, id in ipairs(ids) do
  local at = 3 + 2 * (i - 1)
  local token = ARGV[at + 1]
  local row = redis.pcall('HMGET', jobs .. id, 'attempts', 'settled', 'lease_ms')
  local reason
  if row.err or not row[1] then
    verdicts[i] = redis.error_reply('EMQGONE extend job gone')
  elseif row[1] ~= token then
    reason = 'token mismatch'
  elseif not leases[i] then
    reason = row[2] and 'not held, settled before by ' .. row[2] or 'not held'
  else
    verdicts[i] = 1
    leased[#leased + 1] = now + (lease_ms > 0 and tonumber(row[3]) or lease_ms)
    leased[#leased + 1] = id
  end
  if reason then
    stale = stale + 1
    verdicts[i] = redis.error_reply(
      'EMQSTALE extend ' .. reason .. ' (yours ' .. token .. ', row ' .. row[1] .. ')')
  end
end

-- Write. XX: a job that is not leased is never leased by this.
if #leased > 0 then
  redis.call('ZADD', active, 'XX', unpack(leased))
end
tally('stale', stale)
return verdicts
