-- Raises the fence, then runs what follows with its own KEYS and ARGV, without the fence and the token.
-- Returns {1, result}, an error of what follows, or what `compare.lua` returns.
redis.call('SET', KEYS[1], ARGV[1])
table.remove(KEYS, 1)
table.remove(ARGV, 1)
local result = (function()
