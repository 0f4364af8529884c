-- What those need that count: the numbers. Behind admitted.lua or acquire_fenced.lua.
-- KEYS[3]: the resource's counter. KEYS[4]: at least the largest number of any resource. ARGV[3]: for how many
-- ms the counter stays.
local function number(key)
  local text = redis.call('GET', key)
  if not text then
    return nil
  end
  local n = tonumber(text)
  -- Not by a pattern, which takes longer; so '1e3', if somebody set that, is 1000.
  if not n or n < 0 or n > 9007199254740991 or n % 1 ~= 0 then
    error({err = 'ERR quorumlock: ' .. key .. ' is not a number below 2^53'})
  end
  return n
end
local max = number(KEYS[4]) or 0
-- One that is missing may have been anything up to the largest.
local counter = number(KEYS[3]) or max
-- Sets the counter. The largest number is written first, and ahead: to the end of the counter's step of 64. So
-- a grant within a step need not look at it.
local function count_to(number)
  local ahead = math.min(math.ceil(number / 64) * 64, 9007199254740991)
  if ahead > max then
    redis.call('SET', KEYS[4], string.format('%.0f', ahead))
  end
  redis.call('SET', KEYS[3], string.format('%.0f', number), 'PX', ARGV[3])
end
