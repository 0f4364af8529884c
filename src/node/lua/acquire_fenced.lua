-- As acquire.lua, and counts: the grant comes with a number larger than all that this node ever granted.
-- KEYS[1]: the lock's key. KEYS[2]: the marker. KEYS[3]: the resource's counter. KEYS[4]: the largest number
-- of any resource. KEYS[5]: the floor. ARGV[1]: owner id. ARGV[2]: ttl in ms. ARGV[3]: after how many ms the
-- counter goes when it is not used; one that is missing may have been anything up to the largest.
-- Returns {1, number, owner}: granted; {2, ms, owner}, {3, 0, owner}: as acquire.lua.
if string.sub(redis.call('GET', KEYS[2]) or '', 1, 32) ~= '@mark@' then
  return {3, 0, ARGV[1]}
end
local function number(key)
  local text = redis.call('GET', key)
  if not text then
    return nil
  end
  local n = string.match(text, '^%d+$') and tonumber(text)
  if not n or n > 9007199254740990 then
    error({err = 'ERR quorumlock: ' .. key .. ' is not a counter below 2^53 - 1'})
  end
  return n
end
local max = number(KEYS[4]) or 0
local counter = math.max(number(KEYS[3]) or max, number(KEYS[5]) or 0)
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {2, redis.call('PTTL', KEYS[1]), ARGV[1]}
end
counter = counter + 1
local text = string.format('%.0f', counter)
if counter > max then
  redis.call('SET', KEYS[4], text)
end
redis.call('SET', KEYS[3], text, 'PX', ARGV[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, counter, ARGV[1]}
