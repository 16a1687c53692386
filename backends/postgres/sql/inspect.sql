-- The locks of namespace $1 from name $2 to $3, after $4, at most $5 of them, that are held or waited
-- for (or all, with $6): one snapshot, in order of name. Of each lock a row of its own (what 0, where
-- token is its highest and expires its delay), one for each hold (what 1) and each waiter (what 2).
WITH clock AS MATERIALIZED (SELECT distlock.now_us() AS now), page AS MATERIALIZED (
  SELECT l.*, clock.now FROM distlock.lock l, clock
  WHERE l.space = $1 AND l.name >= $2 AND l.name <= $3 AND l.name > $4
    AND ($6
      OR EXISTS (SELECT FROM unnest(l.holds) h WHERE h.expires > clock.now OR h.phase = 1 AND h.deadline > clock.now)
      OR l.queued > 0 AND EXISTS (SELECT FROM distlock.waiter w WHERE w.lock = l.id AND w.deadline > clock.now))
  ORDER BY l.name LIMIT $5
)
SELECT p.name, 0 AS what, p.now, NULL::bytea AS req, NULL::text AS owner, NULL::int AS mode,
  NULL::bigint AS ttl, NULL::bigint AS min_hold, NULL::bigint AS lock_delay, NULL::text AS label,
  NULL::bigint AS wish, NULL::text AS via, p.hi AS token, NULL::bigint AS block,
  p.delay_until AS expires, NULL::bigint AS granted, NULL::int AS phase, 0::bigint AS since,
  NULL::bigint AS deadline, NULL::boolean AS deaf, 0::bigint AS place
FROM page p
UNION ALL
SELECT p.name, 1, p.now, h.req, h.owner, h.mode, h.ttl, h.min_hold, h.lock_delay, h.label, h.wish,
  h.via, h.token, h.block, h.expires, h.granted, h.phase, h.since, h.deadline, NULL, h.place
FROM page p, unnest(p.holds) WITH ORDINALITY AS h (req, owner, mode, ttl, min_hold, lock_delay, label,
  wish, via, token, block, expires, granted, phase, since, deadline, place)
UNION ALL
SELECT p.name, 2, p.now, w.req, w.owner, w.mode, w.ttl, w.min_hold, w.lock_delay, w.label, w.wish,
  w.via, NULL, NULL, NULL, NULL, NULL, w.since, w.deadline, w.deaf, w.since
FROM page p JOIN distlock.waiter w ON w.lock = p.id
ORDER BY 1, 2, 21
