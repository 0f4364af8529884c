-- Raises the counter to a token that another node granted, if the lock is still the owner's and nothing
-- larger was granted here: the node vouches for the token.
-- KEYS[1]: the lock's key. KEYS[2]: the marker. KEYS[3]: the resource's counter. KEYS[4]: the largest number
-- of any resource. ARGV[1]: owner id. ARGV[2]: the token. ARGV[3]: as in acquire_fenced.lua.
-- Returns {1, 0, owner}: it vouches; {0, 0, owner}: it does not; {3, 0, owner}: not admitted.
if string.sub(redis.call('GET', KEYS[2]) or '', 1, 32) ~= '@mark@' then
  return {3, 0, ARGV[1]}
end
local function number(key)
  local text = redis.call('GET', key)
  if not text then
    return nil
  end
  local n = string.match(text, '^%d+$') and tonumber(text)
  if not n or n > 9007199254740991 then
    error({err = 'ERR quorumlock: ' .. key .. ' is not a counter below 2^53'})
  end
  return n
end
local max = number(KEYS[4]) or 0
local token = tonumber(ARGV[2])
if redis.call('GET', KEYS[1]) ~= ARGV[1] or (number(KEYS[3]) or max) > token then
  return {0, 0, ARGV[1]}
end
if token > max then
  redis.call('SET', KEYS[4], ARGV[2])
end
redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
return {1, 0, ARGV[1]}
