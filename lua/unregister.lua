-- unregister.lua: take a queue out of the registry, unless a worker serves it.
--
-- KEYS[1] queues   set   names of all queues
-- KEYS[2] workers  zset  worker ids by their last beat in ms
--
-- ARGV[1] queue  its name
-- ARGV[2] words  prefix of what the workers say of themselves
--
-- Returns 1 when the name is gone, 0 when a worker serves the queue: its next beat would enter it
-- again.

local queues, workers = KEYS[1], KEYS[2]
local queue, words = ARGV[1], ARGV[2]

for _, id in ipairs(redis.call('ZRANGE', workers, 0, -1)) do
  local served = redis.pcall('HGET', words .. id, 'queues')
  if type(served) == 'string'
    and string.find(' ' .. served .. ' ', ' ' .. queue .. ' ', 1, true) then
    return 0
  end
end
redis.call('SREM', queues, queue)
return 1
