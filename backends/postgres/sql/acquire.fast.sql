-- Takes a lock that nobody holds and nobody waits for, if nothing forbids it; its token, or no row, and
-- then the function "acquire" decides. By itself: within a function, or before one in the same
-- statement, the same UPDATE takes the server longer.
--
-- The clock is the moment at which the statement came, before the row is had, so it is early if it is
-- wrong: whatever ends, ends later than it says. Only a min_hold would be cut short by that, so there
-- must be none; and one token is enough.
UPDATE distlock.lock k SET
  hi = greatest(k.hi + 1, distlock.asked_us()),
  kept_until = CASE WHEN k.kept_until >= greatest(k.hi + 1, distlock.asked_us() + $6::bigint) + 86400000000
    THEN k.kept_until ELSE greatest(k.hi + 1, distlock.asked_us() + $6) + 90000000000 END,
  holds = ARRAY[ROW($3::bytea, $4::text, $5::int, $6, 0, $7::bigint, $8::text, 1, $9::text,
    greatest(k.hi + 1, distlock.asked_us()), 1, distlock.asked_us() + $6, distlock.asked_us(), 0, 0, 0)::distlock.hold]
WHERE k.space = $1::text AND k.name = $2::text AND cardinality(k.holds) = 0 AND k.queued = 0
  AND (k.delay_until = 0 OR k.delay_until <= distlock.asked_us())
  AND (k.stones = 0 OR k.stones <= distlock.asked_us()) AND $3 <> ALL (k.released)
RETURNING k.hi
