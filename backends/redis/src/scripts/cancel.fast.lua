-- KEYS H Q D W Z    ARGV req, '1' if PUBLISH counts listeners
local call, pack, unpack = redis.call, struct.pack, struct.unpack
local v = call('GET', KEYS[1])
@NOW
