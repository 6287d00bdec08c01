-- state.lua: tell in which set a job is.
--
-- KEYS[1] pending   zset  ids ready to run
-- KEYS[2] active    zset  leased ids
-- KEYS[3] schedule  zset  ids waiting for a time
-- KEYS[4] dead      zset  the morgue
-- KEYS[5] done      zset  finished ids whose row is kept
-- KEYS[6] job       key   the row
--
-- ARGV[1] id  job id
--
-- Returns 'pending', 'active', 'scheduled', 'dead' or 'done', the first set that has the id;
--         'unknown' when only the row is there; 'absent' when nothing is.

local id = ARGV[1]

for i, state in ipairs({'pending', 'active', 'scheduled', 'dead', 'done'}) do
  if redis.call('ZSCORE', KEYS[i], id) then
    return state
  end
end
return redis.call('EXISTS', KEYS[6]) == 1 and 'unknown' or 'absent'
