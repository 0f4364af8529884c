-- What an operation begins with that goes alone: its reply says whom it is for. Those that go together say it
-- once, for all of them.
local to = ARGV[1]
