-- What an operation begins with that goes alone: its reply says whom it is for. For those that go together the
-- reply says it once.
-- ARGV[1]: owner id.
local to = ARGV[1]
