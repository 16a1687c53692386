-- Takes a lock that nobody holds and nobody waits for, if nothing forbids it; its token, or no row, and
-- then the function "acquire" decides. By itself, neither within that function nor before it in one
-- statement: either way the same UPDATE takes the server some twenty microseconds more.
--
-- The clock is read before the row is had, so it is early if it is wrong: whatever ends, ends later than
-- it says. Only a min_hold would be cut short by that, so there must be none; and one token is enough.
UPDATE distlock.lock k SET
  hi = greatest(k.hi + 1, clock.n),
  kept_until = CASE WHEN k.kept_until >= greatest(k.hi + 1, clock.n + $6::bigint) + 86400000000 THEN k.kept_until
    ELSE greatest(k.hi + 1, clock.n + $6) + 90000000000 END,
  holds = ARRAY[ROW($3::bytea, $4::text, $5::int, $6, 0, $7::bigint, $8::text, 1, $9::text,
    greatest(k.hi + 1, clock.n), 1, clock.n + $6, clock.n, 0, 0, 0)::distlock.hold]
FROM (SELECT distlock.now_us() AS n) clock
WHERE k.space = $1::text AND k.name = $2::text AND k.holds = '{}' AND k.queued = 0
  AND k.delay_until <= clock.n AND k.stones <= clock.n AND $3 <> ALL (k.released)
RETURNING k.hi
