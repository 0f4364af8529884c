-- Writes the marker, if the server is the process that was looked at and the marker is the one that was
-- seen. So nothing was forgotten, and nobody else decided, between the look and this.
-- KEYS[1]: the marker. KEYS[2]: at least the largest number of any resource. ARGV[1]: run_id. ARGV[2]: the
-- marker that was seen, '' for none. ARGV[3]: the new one. ARGV[4]: its floor, to which the largest number
-- rises: it is what other nodes learn from this one. And it rises to the end of its step of 64, on which grants
-- rely (acquire_fenced.lua), also on data that was written in another way.
-- Returns '1 0 run_id': written; '0 0 run_id': it is no longer as it was seen.
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if run_id ~= ARGV[1] or (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then
  return '0 0 ' .. ARGV[1]
end
local max = tonumber(redis.call('GET', KEYS[2]) or '0')
local ahead = math.min(math.ceil(math.max(max, tonumber(ARGV[4])) / 64) * 64, 9007199254740991)
if ahead > max then
  redis.call('SET', KEYS[2], string.format('%.0f', ahead))
end
redis.call('SET', KEYS[1], ARGV[3])
return '1 0 ' .. ARGV[1]
