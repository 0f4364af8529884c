-- Sets the lock's key if there is none, and counts: the grant comes with a number larger than all that
-- this node ever granted. Behind counting.lua. In the place of @floor@ is the floor of the admission.
-- ARGV[2]: ttl in ms. ARGV[3]: after how many ms the counter goes when it is not used.
-- Returns '1 number owner': granted; '2 ms owner': as acquire.lua.
counter = math.max(counter, @floor@)
if math.max(counter, max) >= 9007199254740991 then
  error({err = 'ERR quorumlock: ' .. KEYS[max > counter and 4 or 3] .. ' cannot go beyond 2^53 - 1'})
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return string.format('2 %.0f %s', redis.call('PTTL', KEYS[1]), ARGV[1])
end
counter = counter + 1
local text = string.format('%.0f', counter)
if counter > max then
  redis.call('SET', KEYS[4], text)
end
redis.call('SET', KEYS[3], text, 'PX', ARGV[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return '1 ' .. text .. ' ' .. ARGV[1]
