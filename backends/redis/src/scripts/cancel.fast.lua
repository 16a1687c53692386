-- KEYS H Q D W Z    ARGV req, whom PUBLISH counts
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local v = call('GET', KEYS[1])
@NOW
