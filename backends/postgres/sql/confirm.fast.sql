-- Confirms a turn that a request was told of, where time has changed nothing; its tokens and how many
-- wait, or no row, and then the function "acquire" decides. The clock is that of "take". Who is cancelled
-- or revoked has no turn any more, and a lock-delay does not end one.
--
-- Others of the same owner would have to be let in with it. "has_kin" looks for them anew whenever the
-- row is looked at, also after a wait for it: who joins the line changes the row.
UPDATE distlock.lock k SET
  kept_until = CASE WHEN k.kept_until >= greatest(k.hi, distlock.asked_us() + $4::bigint) + 86400000000
    THEN k.kept_until ELSE greatest(k.hi, distlock.asked_us() + $4) + 90000000000 END,
  holds = ARRAY[ROW((k.holds[1]).req, (k.holds[1]).owner, (k.holds[1]).mode, (k.holds[1]).ttl, 0,
    (k.holds[1]).lock_delay, (k.holds[1]).label, (k.holds[1]).wish, coalesce($5::text, (k.holds[1]).via),
    (k.holds[1]).token, (k.holds[1]).block, distlock.asked_us() + $4, distlock.asked_us(), 0, 0, 0)::distlock.hold]
WHERE k.space = $1::text AND k.name = $2::text AND cardinality(k.holds) = 1
  AND (k.holds[1]).req = $3::bytea AND (k.holds[1]).phase = 1 AND (k.holds[1]).mode = 0
  AND (k.holds[1]).expires > distlock.asked_us() AND (k.holds[1]).min_hold = 0
  AND $3 <> ALL (k.released)
  AND (k.queued = 0 OR k.soonest > distlock.asked_us())
  AND CASE WHEN k.queued <= k.deaf THEN true ELSE NOT distlock.has_kin(k.id, (k.holds[1]).owner) END
RETURNING (k.holds[1]).token, (k.holds[1]).block, k.queued
