-- Sets a held lock again on a node that lost it, with its token: the counter is at least that. Behind
-- counting.lua.
-- ARGV[2]: ttl in ms. ARGV[3]: after how many ms the counter goes when it is not used. ARGV[4]: the token.
-- Returns '1 0 owner': set; '2 ms owner': as acquire.lua.
counter = math.max(counter, tonumber(ARGV[4]))
if redis.call('EXISTS', KEYS[1]) == 1 then
  return string.format('2 %.0f %s', redis.call('PTTL', KEYS[1]), ARGV[1])
end
local text = string.format('%.0f', counter)
if counter > max then
  redis.call('SET', KEYS[4], text)
end
redis.call('SET', KEYS[3], text, 'PX', ARGV[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return '1 0 ' .. ARGV[1]
