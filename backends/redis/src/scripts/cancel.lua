trusted = ARGV[2]
open(1, v)
drop_ended()
promote()
cancel(ARGV[1])
close()
return 1
