-- Sets a held lock again on a node that lost it, with its token: the counter is at least that.
-- KEYS and ARGV as in acquire_fenced.lua, but for KEYS[5]; ARGV[4]: the token.
-- Returns {1, 0, owner}: set; {2, ms, owner}, {3, 0, owner}: as acquire.lua.
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
local counter = math.max(number(KEYS[3]) or max, tonumber(ARGV[4]))
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {2, redis.call('PTTL', KEYS[1]), ARGV[1]}
end
local text = string.format('%.0f', counter)
if counter > max then
  redis.call('SET', KEYS[4], text)
end
redis.call('SET', KEYS[3], text, 'PX', ARGV[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, 0, ARGV[1]}
