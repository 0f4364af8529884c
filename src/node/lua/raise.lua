-- Raises the counter to a token that another node granted, if the lock is still the owner's and nothing
-- larger was granted here: the node vouches for the token. Behind counting.lua.
-- ARGV[2]: the token. ARGV[3]: after how many ms the counter goes when it is not used.
-- Returns '1 0 owner': it vouches; '0 0 owner': it does not.
local token = tonumber(ARGV[2])
if redis.call('GET', KEYS[1]) ~= ARGV[1] or counter > token then
  return '0 0 ' .. ARGV[1]
end
if token > max then
  redis.call('SET', KEYS[4], ARGV[2])
end
redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
return '1 0 ' .. ARGV[1]
