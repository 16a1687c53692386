-- Gives a hold back: the one hold is this one, nobody waits, and nothing hangs on how late it is. Where
-- it changes no row, the function "release" decides.
UPDATE distlock.lock k SET holds = '{}',
  released = k.released[greatest(1, cardinality(k.released) - 6):] || $3::bytea,
  released_until = k.released_until[greatest(1, cardinality(k.released) - 6):] || clock.n + 60000000
FROM (SELECT distlock.now_us() AS n) clock
WHERE k.space = $1::text AND k.name = $2::text AND cardinality(k.holds) = 1
  AND (k.holds[1]).req = $3 AND (k.holds[1]).phase = 0 AND (k.holds[1]).expires > clock.n
  AND (k.holds[1]).min_hold = 0 AND (k.holds[1]).lock_delay = 0 AND k.queued = 0
  AND (cardinality(k.released) < 8 OR clock.n < ALL (k.released_until))
