-- onward.lua: tell which jobs of chains are to be admitted to other queues, and forget those that are.
--
-- KEYS[1] onward  hash  jobs of chains that are to be admitted to other queues
--
-- ARGV[1]  batch  how many to tell at most, about; 0 for none
-- ARGV[2…] ids    of those that have been admitted
--
-- Returns {now, id, job, id, job, …}: the server's clock in ms, and jobs as `admit` in complete.lua
--         has written them.
--
-- Another queue may be on another server, so no script can do both. Whoever keeps house admits
-- them there by their ids, then calls this with those ids; see django_emq/onward.py.

local onward = KEYS[1]
local batch = tonumber(ARGV[1])

for i = 2, #ARGV do
  redis.call('HDEL', onward, ARGV[i])
end
local time = redis.call('TIME')
local reply = {time[1] * 1000 + math.floor(time[2] / 1000)}
for _, text in ipairs(batch > 0 and redis.call('HRANDFIELD', onward, batch, 'WITHVALUES') or {}) do
  reply[#reply + 1] = text
end
return reply
