-- wait.lua: tell where a job is, and note who waits for its end.
--
-- KEYS[1] pending   zset  ids ready to run
-- KEYS[2] active    zset  leased ids
-- KEYS[3] schedule  zset  ids waiting for a time
-- KEYS[4] dead      zset  the morgue
-- KEYS[5] done      zset  finished ids whose row is kept
-- KEYS[6] job       hash  the row
--
-- ARGV[1] id      job id
-- ARGV[2] waiter  name of the caller: letters and digits; waiter:<name> is the list on which it
--                 waits, and where whatever ends the job leaves a word
-- ARGV[3] keep    how many waiters a row notes, the newest
--
-- Returns 'pending', 'active' or 'scheduled' for a job that is still to end; 'dead' or 'done' for
--         one that has ended, 'unknown' when only the row is there, 'absent' when nothing is.
--
-- Asking again under the same name notes it once. Who is pushed out by newer ones, and who asks a
-- server that is full, is told nothing: so a waiter asks again every few seconds.

local job = KEYS[6]
local id, waiter, keep = ARGV[1], ARGV[2], tonumber(ARGV[3])

local state
for i, name in ipairs({'pending', 'active', 'scheduled', 'dead', 'done'}) do
  if not state and redis.call('ZSCORE', KEYS[i], id) then
    state = name
  end
end
if not state or state == 'dead' or state == 'done' then
  return state or (redis.call('EXISTS', job) == 1 and 'unknown' or 'absent')
end
local waiters = redis.pcall('HGET', job, 'waiters')
if type(waiters) == 'table' or redis.call('EXISTS', job) == 0 then  -- damage: no row to write to
  return state
end
local names = {}
for name in string.gmatch(waiters or '', '%w+') do
  if name == waiter then
    return state
  end
  names[#names + 1] = name
end
names[#names + 1] = waiter
redis.pcall('HSET', job, 'ties', '1', 'waiters',
  table.concat(names, ' ', math.max(#names - keep, 0) + 1))
return state
