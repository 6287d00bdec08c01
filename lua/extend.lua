-- extend.lua: prolong the leases of held jobs.
--
-- KEYS[1] active  zset  leased ids, scored by lease expiry in ms
--
-- ARGV[1]  jobs      prefix of the rows
-- ARGV[2]  lease_ms  from now, unless the row has a lease_ms of its own; 0 ends every lease
-- ARGV[3…] a job:    id, token
--
-- Returns one verdict a job: 1 prolonged.
-- Errors  EMQSTALE when the token is not the row's, or the job is not held by it;
--         EMQCANCEL when it is not since the job was cancelled: so its run is told;
--         EMQGONE when the row is gone.
--
-- Refusals are neither counted nor noted: a supervisor asks for all that a child claimed, also
-- for what the child has settled meanwhile.

local active = KEYS[1]
local jobs, lease_ms = ARGV[1], tonumber(ARGV[2])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A row's number, or the default where there is none: what a stranger wrote may be no number.
local function whole(text, default)
  return text and #text < 16 and string.match(text, '^-?%d+$') and tonumber(text) or default
end

local ids = {}
for at = 3, #ARGV, 2 do
  ids[#ids + 1] = ARGV[at]
end
local leases = redis.call('ZMSCORE', active, unpack(ids))

-- Read and decide.
local verdicts, leased = {}, {}
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
    leased[#leased + 1] = now + (lease_ms > 0 and whole(row[3], lease_ms) or lease_ms)
    leased[#leased + 1] = id
  end
  if reason == 'token mismatch' and row[2] == 'cancel' then
    verdicts[i] = redis.error_reply(
      'EMQCANCEL extend cancelled (yours ' .. token .. ', row ' .. row[1] .. ')')
  elseif reason then
    verdicts[i] = redis.error_reply(
      'EMQSTALE extend ' .. reason .. ' (yours ' .. token .. ', row ' .. row[1] .. ')')
  end
end

-- Write. XX: a job that is not leased is never leased by this. A full server refuses a script
-- that begins with ZADD, but not one that begins with ZREM.
if #leased > 0 then
  redis.call('ZREM', active, '')
  redis.call('ZADD', active, 'XX', unpack(leased))
end
return verdicts
