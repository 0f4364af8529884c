-- How those begin that count: with the numbers. Behind admitted.lua.
-- KEYS[1]: the lock's key. KEYS[3]: the resource's counter. KEYS[4]: the largest number of any resource.
-- ARGV[1]: owner id.
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
