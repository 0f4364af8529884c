-- Raises the counter to a token that another node granted, if the lock is still the owner's and nothing
-- larger was granted here: the node vouches for the token. Behind counting.lua.
-- KEYS[1]: the lock's key. ARGV[1]: owner id. ARGV[2]: the token.
-- Returns '1 0 owner': it vouches; '0 0 owner': it does not.
local token = tonumber(ARGV[2])
if redis.call('GET', KEYS[1]) ~= ARGV[1] or counter > token then
  return '0 0 ' .. to
end
count_to(token)
return '1 0 ' .. to
