-- KEYS H Q D W Z of each lock    ARGV whom PUBLISH counts, via, then for each waiter the
-- number of its lock, its request and its wait. Waiters of one lock stand together.
-- Answers two numbers for each: how many are ahead and what is left (-1 for never); or -1 its turn,
-- -2 not known, and 0.
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local v
@NOW
