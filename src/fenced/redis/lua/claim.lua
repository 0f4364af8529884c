-- Raises the fence.
-- Returns {1}, or what `compare.lua` returns.
redis.call('SET', KEYS[1], ARGV[1])
return {1}
