-- Does several operations in one step: in the order in which they are asked for, and each as if it were asked
-- for alone. In front of it are `to`, which is nobody here, and their scripts, in one function of the name of
-- one, its KEYS and its ARGV. What votes begin with is looked at once, and for all that is released it is asked
-- at once whether anybody waits.
-- KEYS[1]: the marker. KEYS[2]: at least the largest number of any resource. Behind them the locks' keys, and
-- then the counters of those that count.
-- ARGV[1]: the number of this command. ARGV[2]: the owner ids, one behind another. ARGV[3]: of which kind each
-- operation is, a character for each, from '0' on. ARGV[4] to ARGV[7] are the first kind, and so on: its name,
-- and three numbers, of which its script takes those that it wants behind the owner id.
-- Returns the number of this command, and what their scripts return, a line each, without the owner: whom it
-- is for is said once. '5 0  message' for an error of one, which does not keep the others from being done.
-- Local ones are found faster.
local KEYS, ARGV, sub = KEYS, ARGV, string.sub
local marker = redis.pcall('GET', KEYS[1])
local is_readable = type(marker) ~= 'table'
local is_admitted = is_readable and sub(marker or '', 1, 32) == '@mark@'
local owners, kinds, rings = ARGV[2], {string.byte(ARGV[3], 1, -1)}, {}
for i = 1, #kinds do
  if ARGV[4 * (kinds[i] - 47)] == 'release' then
    rings[#rings + 1] = KEYS[i + 2] .. '/---'
  end
end
local sit = #rings > 0 and redis.pcall('PUBSUB', 'NUMSUB', unpack(rings)) or {}
local keys, args, said = {'', KEYS[1], '', KEYS[2]}, {'', '', '', ''}, {ARGV[1]}
local counter, ring = #kinds + 2, 0
for i = 1, #kinds do
  local kind = 4 * (kinds[i] - 47)
  local name, is_allowed = ARGV[kind], is_admitted
  keys[1], args[1], args[2] = KEYS[i + 2], sub(owners, 32 * i - 31, 32 * i), ARGV[kind + 1]
  if name == 'release' then
    is_allowed, ring = true, ring + 2
    -- Where nobody waits, nobody is to be looked for.
    args[2] = sit[ring] == 0 and '0' or args[2]
  elseif name == 'extend' then
    is_allowed = true
  elseif name ~= 'acquire' then
    counter = counter + 1
    keys[3], args[3], args[4] = KEYS[counter], ARGV[kind + 2], ARGV[kind + 3]
  end
  local is_done, reply
  if is_allowed then
    is_done, reply = pcall(operation, name, keys, args)
  elseif is_readable then
    is_done, reply = true, '3 0 '
  else
    is_done, reply = false, marker
  end
  if not is_done then
    local message = type(reply) == 'table' and reply.err or tostring(reply)
    reply = '5 0  ' .. string.gsub(message, '[\r\n]', ' ')
  end
  said[i + 1] = reply
end
return table.concat(said, '\n')
