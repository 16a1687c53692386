-- Gives a hold back: the one hold is this one, nobody waits, and nothing hangs on how late it is, neither
-- a min_hold nor a lock-delay. Where it changes no row, the function "release" decides. The clock is that
-- of "take".
UPDATE distlock.lock k SET holds = '{}',
  released = k.released[greatest(1, cardinality(k.released) - 6):] || $3::bytea,
  released_until = k.released_until[greatest(1, cardinality(k.released) - 6):] || distlock.asked_us() + 60000000
WHERE k.space = $1::text AND k.name = $2::text AND cardinality(k.holds) = 1
  AND (k.holds[1]).req = $3 AND (k.holds[1]).phase = 0 AND (k.holds[1]).expires > distlock.asked_us()
  AND (k.holds[1]).min_hold = 0 AND (k.holds[1]).lock_delay = 0 AND k.queued = 0
  AND $3 <> ALL (k.released)
  AND (cardinality(k.released) < 8 OR distlock.asked_us() < ALL (k.released_until))
