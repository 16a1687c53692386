-- Undoes a request, whatever became of it, and leaves a tombstone.
-- KEYS H Q D W Z    ARGV req, which channels PUBLISH counts
s.trusted = ARGV[2]
open(1, call('GET', KEYS[1]))
drop_ended()
settle()
cancel(ARGV[1])
close()
return 1
