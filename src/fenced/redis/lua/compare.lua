-- The beginning of every script here: `refusal` compares the token with the fence and writes nothing.
-- KEYS[1]: the fence. ARGV[1]: the token. Both in decimal digits, at most 2^53 - 1, up to which Lua's
-- numbers are exact. The fence is only ever set from the argument: Lua would print 1e14 as "1e+14".
-- Returns nil: go on; {0, fence}: stale; {-1, what}: the fence is something else; {-3, what}: the token is.
local function is_token(text)
  return string.find(text, '^%d+$') and tonumber(text) <= 9007199254740991
end
local function refusal()
  if not is_token(ARGV[1]) then
    return {-3, ARGV[1]}
  end
  local found = redis.call('TYPE', KEYS[1])['ok']
  if found ~= 'none' and found ~= 'string' then
    return {-1, found}
  end
  local fence = redis.call('GET', KEYS[1]) or '0'
  if not is_token(fence) then
    return {-1, string.sub(fence, 1, 40)}
  end
  if tonumber(ARGV[1]) < tonumber(fence) then
    return {0, fence}
  end
end
local refused = refusal()
if refused then
  return refused
end
