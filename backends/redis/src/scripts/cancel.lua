s.trusted = ARGV[2]
open(1, v)
drop_ended()
settle()
cancel(ARGV[1])
close()
return 1
