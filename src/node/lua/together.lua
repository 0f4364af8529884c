-- Does several operations in one step: in the order in which they are asked for, and each as if it were asked
-- for alone. In front of it are their scripts, in one function of the name of one, its KEYS and its ARGV; what
-- votes begin with is looked at once.
-- KEYS[1]: the marker. KEYS[2]: at least the largest number of any resource. Behind them the keys of each
-- operation: the lock's and, if it counts, the resource's counter.
-- ARGV: of each operation its name, the owner id and a number; if it counts, two more. The numbers are what its
-- script takes behind the owner id.
-- Returns what their scripts return, a line each; '5 0 owner message' for an error of one, which does not
-- keep the others from being done.
local marker = redis.pcall('GET', KEYS[1])
local is_readable = type(marker) ~= 'table'
local is_admitted = is_readable and string.sub(marker or '', 1, 32) == '@mark@'
local keys, args, said = {'', KEYS[1], '', KEYS[2]}, {'', '', '', ''}, {}
local key, arg, done = 3, 1, 0
while ARGV[arg] do
  local name, owner = ARGV[arg], ARGV[arg + 1]
  local counts = name == 'acquire_fenced' or name == 'raise' or name == 'refill_fenced'
  keys[1], args[1], args[2] = KEYS[key], owner, ARGV[arg + 2]
  if counts then
    keys[3], args[3], args[4] = KEYS[key + 1], ARGV[arg + 3], ARGV[arg + 4]
    key, arg = key + 2, arg + 5
  else
    key, arg = key + 1, arg + 3
  end
  local is_done, reply
  if is_admitted or name == 'extend' or name == 'release' then
    is_done, reply = pcall(operation, name, keys, args)
  elseif is_readable then
    is_done, reply = true, '3 0 ' .. owner
  else
    is_done, reply = false, marker
  end
  if not is_done then
    local message = type(reply) == 'table' and reply.err or tostring(reply)
    reply = '5 0 ' .. owner .. ' ' .. string.gsub(message, '[\r\n]', ' ')
  end
  done = done + 1
  said[done] = reply
end
return table.concat(said, '\n')
