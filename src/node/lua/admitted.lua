-- What every vote that goes alone begins with, behind alone.lua: the node has been admitted and has forgotten
-- nothing since. Each admission loads these texts with an id of its own in the place of @mark@, and writes the
-- same id into the marker. So a server that restarted does not know the script, one that was flushed has no
-- marker, and one that was another's replica meanwhile has another's.
-- KEYS[2]: the marker.
-- Returns '3 0 owner' if not.
-- All scripts return one string, which costs server and client less than a list of three.
if string.sub(redis.call('GET', KEYS[2]) or '', 1, 32) ~= '@mark@' then
  return '3 0 ' .. to
end
