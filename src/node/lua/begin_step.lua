-- The first number of a step, of a new counter, or above the floor. Behind acquire_fenced.lua and
-- counting.lua.
-- Returns '1 number owner': granted, with this number.
counter = math.max(counter, @floor@) + 1
if counter > 9007199254740991 then
  local key = KEYS[redis.call('EXISTS', KEYS[3]) == 1 and 3 or 4]
  error({err = 'ERR quorumlock: ' .. key .. ' cannot go beyond 2^53 - 1'})
end
count_to(counter)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return string.format('1 %.0f %s', counter, to)
