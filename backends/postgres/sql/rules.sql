-- The rules of a lock, as LockState::step has them. Each function gets the lock's row, which its
-- caller has locked, and gives it back changed; "finish" writes it. Nothing here reads the clock
-- but "now_us": the caller does, once, after it has the row.

CREATE OR REPLACE FUNCTION distlock.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- When the statement came that runs: the same all through it, and quick enough to be asked for often.
CREATE OR REPLACE FUNCTION distlock.asked_us() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT (date_part('epoch', statement_timestamp()) * 1000000)::bigint $$;

-- The lock's row, locked; made if there is none, and then some that nobody needs any more go.
CREATE OR REPLACE FUNCTION distlock.start(p_space text, p_name text, OUT l distlock.lock)
LANGUAGE plpgsql AS $$
BEGIN
  LOOP
    SELECT * INTO l FROM distlock.lock k WHERE k.space = p_space AND k.name = p_name FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO distlock.lock (space, name) VALUES (p_space, p_name) ON CONFLICT DO NOTHING;
    PERFORM distlock.sweep(8);
  END LOOP;
END $$;

-- Takes away a few rows that are over, never one that somebody works on. The clock is read once, in a
-- subselect: a VOLATILE function in the condition itself would be called for every row of the table.
CREATE OR REPLACE FUNCTION distlock.sweep(p_most int) RETURNS void LANGUAGE sql AS $$
  WITH gone AS (
    DELETE FROM distlock.lock WHERE ctid = ANY (ARRAY(
      SELECT ctid FROM distlock.lock WHERE kept_until > 0 AND kept_until < (SELECT distlock.now_us())
      ORDER BY kept_until LIMIT p_most FOR UPDATE SKIP LOCKED))
    RETURNING id
  ), line AS (
    DELETE FROM distlock.waiter WHERE lock IN (SELECT id FROM gone)
  )
  DELETE FROM distlock.spent WHERE lock IN (SELECT id FROM gone)
$$;

-- Writes the row. It is kept for a day after anything in it could still matter.
CREATE OR REPLACE FUNCTION distlock.finish(l distlock.lock, n bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  need bigint := greatest(n, l.hi, l.stones, l.delay_until);
  h distlock.hold;
BEGIN
  FOREACH h IN ARRAY l.holds LOOP need := greatest(need, h.expires, h.deadline); END LOOP;
  IF l.kept_until < need + 86400000000 THEN l.kept_until := need + 90000000000; END IF;
  UPDATE distlock.lock k SET hi = l.hi, delay_until = l.delay_until, queued = l.queued,
    deaf = l.deaf, soonest = l.soonest, latest = l.latest, stones = l.stones,
    kept_until = l.kept_until, holds = l.holds, released = l.released,
    released_until = l.released_until
  WHERE k.space = l.space AND k.name = l.name;
END $$;

-- What this transaction does may be lost if the server crashes within the next moments: the row is
-- free for others without waiting for the disk. For those who wait: one whose place was lost asks
-- again, and a turn told of here counts only once it is confirmed, which brings all before it to disk.
-- And for a release that hands over: if it is lost, so is the turn, and nobody was granted anything;
-- the hold is there again, and whoever released it finds it or it ends with its lease.
CREATE OR REPLACE FUNCTION distlock.need_not_last() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
END $$;

-- Puts a waiter in line.
CREATE OR REPLACE FUNCTION distlock.join_line(INOUT l distlock.lock, h distlock.hold, p_deaf boolean)
LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO distlock.waiter VALUES (l.id, h.req, h.since, h.deadline, p_deaf, h.owner, h.mode,
    h.ttl, h.min_hold, h.lock_delay, h.label, h.wish, h.via);
  IF l.queued = 0 OR h.deadline < l.soonest THEN l.soonest := h.deadline; END IF;
  l.latest := greatest(l.latest, h.since);
  l.queued := l.queued + 1;
  IF p_deaf THEN l.deaf := l.deaf + 1; END IF;
END $$;

-- Takes a request out of the line, if it is in it.
CREATE OR REPLACE FUNCTION distlock.quit_line(INOUT l distlock.lock, p_req bytea, OUT was boolean)
LANGUAGE plpgsql AS $$
DECLARE d boolean;
BEGIN
  was := false;
  IF l.queued = 0 THEN RETURN; END IF;
  DELETE FROM distlock.waiter w WHERE w.lock = l.id AND w.req = p_req RETURNING deaf INTO d;
  IF d IS NULL THEN RETURN; END IF;
  was := true;
  l.queued := l.queued - 1;
  IF d THEN l.deaf := l.deaf - 1; END IF;
END $$;

-- What has ended is dropped; a waiter whose promotion ended unconfirmed is back in its place,
-- passed over. "stirred" says whether somebody may be let in who could not be before: every move
-- leaves nobody behind who can.
CREATE OR REPLACE FUNCTION distlock.drop_ended(INOUT l distlock.lock, n bigint, OUT stirred boolean)
LANGUAGE plpgsql AS $$
DECLARE
  h distlock.hold;
  live distlock.hold[] := '{}';
  gone int;
  gone_deaf int;
BEGIN
  stirred := l.delay_until > 0;
  FOREACH h IN ARRAY l.holds LOOP
    IF h.expires > n THEN
      live := live || h;
      CONTINUE;
    END IF;
    stirred := true;
    IF h.phase = 1 THEN
      IF h.deadline > n THEN l := distlock.join_line(l, h, true); END IF;
    ELSIF h.phase <> 2 AND h.lock_delay > 0 THEN
      l.delay_until := greatest(l.delay_until, h.expires + h.lock_delay);
    END IF;
  END LOOP;
  l.holds := live;
  IF l.queued > 0 AND l.soonest <= n THEN
    stirred := true;
    WITH over AS (DELETE FROM distlock.waiter w WHERE w.lock = l.id AND w.deadline <= n RETURNING w.deaf)
      SELECT count(*), count(*) FILTER (WHERE over.deaf) INTO gone, gone_deaf FROM over;
    l.queued := l.queued - gone;
    l.deaf := l.deaf - gone_deaf;
    SELECT coalesce(min(w.deadline), 0) INTO l.soonest FROM distlock.waiter w WHERE w.lock = l.id;
  END IF;
END $$;

-- Hears of a request: a waiter's deadline moves on, and it is passed over no more.
CREATE OR REPLACE FUNCTION distlock.hear(
  INOUT l distlock.lock, p_req bytea, p_wait bigint, p_via text, n bigint,
  OUT in_line boolean, OUT woke boolean)
LANGUAGE plpgsql AS $$
DECLARE
  h distlock.hold;
  d boolean;
BEGIN
  in_line := false;
  woke := false;
  FOR i IN 1 .. cardinality(l.holds) LOOP
    h := l.holds[i];
    IF h.req = p_req THEN
      IF h.phase = 1 THEN
        h.deadline := greatest(h.deadline, n + p_wait);
        h.via := p_via;
        l.holds[i] := h;
      END IF;
      RETURN;
    END IF;
  END LOOP;
  IF l.queued = 0 THEN RETURN; END IF;
  SELECT w.deaf INTO d FROM distlock.waiter w WHERE w.lock = l.id AND w.req = p_req;
  IF NOT FOUND THEN RETURN; END IF;
  UPDATE distlock.waiter w SET deadline = greatest(w.deadline, n + p_wait), deaf = false, via = p_via
    WHERE w.lock = l.id AND w.req = p_req;
  in_line := true;
  woke := d;
  IF d THEN l.deaf := l.deaf - 1; END IF;
END $$;

-- The hold that lets an owner in as a re-entry.
CREATE OR REPLACE FUNCTION distlock.joins(
  p_holds distlock.hold[], p_owner text, p_mode int, OUT mate distlock.hold)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE h distlock.hold;
BEGIN
  FOREACH h IN ARRAY p_holds LOOP
    IF h.phase = 0 AND h.mode = p_mode AND h.owner = p_owner THEN
      mate := h;
      RETURN;
    END IF;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION distlock.fits(p_holds distlock.hold[], p_mode int) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF cardinality(p_holds) = 0 THEN RETURN true; END IF;
  IF p_mode = 0 THEN RETURN false; END IF;
  IF EXISTS (SELECT FROM unnest(p_holds) h WHERE h.mode <> p_mode) THEN RETURN false; END IF;
  RETURN p_mode < 0 OR (SELECT count(DISTINCT h.token) FROM unnest(p_holds) h) < p_mode;
END $$;

-- The tokens of the hold that lets a claim in, or new ones; and the highest then. A block is cut
-- rather than let the highest token run ahead of the clock by more than a second.
CREATE OR REPLACE FUNCTION distlock.tokens_for(
  l distlock.lock, h distlock.hold, n bigint, OUT token bigint, OUT block bigint, OUT hi bigint)
LANGUAGE plpgsql AS $$
DECLARE j distlock.hold := distlock.joins(l.holds, h.owner, h.mode);
BEGIN
  IF j.req IS NOT NULL THEN
    token := j.token;
    block := j.block;
    hi := l.hi;
  ELSE
    token := greatest(l.hi + 1, n);
    block := least(h.wish, greatest(1, n + 1000000 - token));
    hi := token + block - 1;
  END IF;
END $$;

-- Grants: the hold is the last of the lock's then.
CREATE OR REPLACE FUNCTION distlock.grant_to(
  INOUT l distlock.lock, h distlock.hold, p_phase int, p_until bigint, n bigint)
LANGUAGE plpgsql AS $$
BEGIN
  SELECT t.token, t.block, t.hi INTO h.token, h.block, l.hi FROM distlock.tokens_for(l, h, n) t;
  h.phase := p_phase;
  h.expires := p_until;
  h.granted := n;
  l.holds := l.holds || h;
END $$;

-- Tells a client something about a request: t its turn, c contended, x taken away. The lengths
-- keep any name in one piece.
CREATE OR REPLACE FUNCTION distlock.tell(p_via text, p_kind text, p_req bytea, l distlock.lock)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_via <> '' THEN
    PERFORM pg_notify(p_via, p_kind || encode(p_req, 'hex') || length(l.space) || ':' || l.space || l.name);
  END IF;
END $$;

-- Whether the client behind a channel is there: it keeps an advisory lock on its own number, which
-- is the end of the channel's name, on the very connection that listens. Shared, so that two who
-- look at once do not take each other for it.
CREATE OR REPLACE FUNCTION distlock.listens(p_via text) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT NOT pg_try_advisory_xact_lock_shared(('x' || right(p_via, 16))::bit(64)::bigint)
$$;

-- Grants the head while it fits, as a claim that its waiter must confirm; a waiter whose owner holds
-- the lock already is let in whatever its place. One who cannot be told keeps its place, passed over
-- until it is heard of; its tokens are used up, as if it had held for a moment.
CREATE OR REPLACE FUNCTION distlock.promote(INOUT l distlock.lock, n bigint, p_own bytea)
LANGUAGE plpgsql AS $$
DECLARE
  w distlock.waiter;
  other distlock.waiter;
  h distlock.hold;
  silent text[] := '{}';
BEGIN
  FOR i IN 1 .. 1000 LOOP
    IF l.queued <= l.deaf THEN RETURN; END IF;
    w := NULL;
    FOREACH h IN ARRAY l.holds LOOP
      IF h.phase = 0 THEN
        SELECT * INTO other FROM distlock.waiter q
          WHERE q.lock = l.id AND q.owner = h.owner AND q.mode = h.mode AND NOT q.deaf
          ORDER BY q.since LIMIT 1;
        IF FOUND AND (w.req IS NULL OR other.since < w.since) THEN w := other; END IF;
      END IF;
    END LOOP;
    IF w.req IS NULL THEN
      IF l.delay_until > n THEN RETURN; END IF;
      SELECT * INTO w FROM distlock.waiter q WHERE q.lock = l.id AND NOT q.deaf
        ORDER BY q.since LIMIT 1;
      IF NOT FOUND THEN -- somebody deleted rows of ours: count anew
        SELECT count(*), count(*) INTO l.queued, l.deaf FROM distlock.waiter q WHERE q.lock = l.id;
        RETURN;
      END IF;
      IF NOT distlock.fits(l.holds, w.mode) THEN RETURN; END IF;
    END IF;
    h := ROW(w.req, w.owner, w.mode, w.ttl, w.min_hold, w.lock_delay, w.label, w.wish, w.via,
      0, 0, 0, 0, 1, w.since, w.deadline)::distlock.hold;
    IF w.req IS DISTINCT FROM p_own AND w.via <> ''
      AND (w.via = ANY (silent) OR NOT distlock.listens(w.via)) THEN
      silent := silent || w.via;
      SELECT t.hi INTO l.hi FROM distlock.tokens_for(l, h, n) t;
      UPDATE distlock.waiter q SET deaf = true WHERE q.lock = l.id AND q.req = w.req;
      l.deaf := l.deaf + 1;
      CONTINUE;
    END IF;
    DELETE FROM distlock.waiter q WHERE q.lock = l.id AND q.req = w.req;
    l.queued := l.queued - 1;
    l := distlock.grant_to(l, h, 1, n + least(1000000, w.ttl), n);
    IF w.req IS DISTINCT FROM p_own THEN PERFORM distlock.tell(w.via, 't', w.req, l); END IF;
  END LOOP;
  l.soonest := 0; -- so that the next move goes on
END $$;

-- How a request ended: 0 released, 1 cancelled, nothing while it has not; and until when that is
-- remembered.
CREATE OR REPLACE FUNCTION distlock.ended(l distlock.lock, p_req bytea, n bigint, OUT how int, OUT until bigint)
LANGUAGE plpgsql AS $$
DECLARE i int := array_position(l.released, p_req);
BEGIN
  IF l.released_until[i] > n THEN
    how := 0;
    until := l.released_until[i];
    RETURN;
  END IF;
  IF l.stones > n THEN
    SELECT 1, p.until INTO how, until FROM distlock.spent p
      WHERE p.lock = l.id AND p.req = p_req AND p.until > n;
  END IF;
END $$;

-- Remembers that a request has ended, for a minute after p_from. How it ended first stays; but released and
-- then cancelled it counts as cancelled: a copy of it may be under way, and few releases are remembered.
CREATE OR REPLACE FUNCTION distlock.spend(INOUT l distlock.lock, p_req bytea, p_how int, p_from bigint, n bigint)
LANGUAGE plpgsql AS $$
DECLARE
  till bigint := p_from + 60000000;
  before record := distlock.ended(l, p_req, n);
  still bytea[] := '{}';
  still_until bigint[] := '{}';
BEGIN
  IF before.how IS NOT NULL THEN
    p_how := greatest(p_how, before.how);
    till := greatest(till, before.until);
  END IF;
  FOR i IN 1 .. cardinality(l.released) LOOP
    IF l.released_until[i] > n AND l.released[i] <> p_req THEN
      still := still || l.released[i];
      still_until := still_until || l.released_until[i];
    END IF;
  END LOOP;
  IF p_how = 1 THEN
    IF before.how = 0 THEN
      l.released := still;
      l.released_until := still_until;
    END IF;
    l.stones := greatest(l.stones, till);
    DELETE FROM distlock.spent p WHERE p.lock = l.id AND p.until <= n;
    INSERT INTO distlock.spent VALUES (l.id, p_req, till)
      ON CONFLICT (lock, req) DO UPDATE SET until = excluded.until;
    DELETE FROM distlock.spent p WHERE p.lock = l.id AND p.req IN (
      SELECT q.req FROM distlock.spent q WHERE q.lock = l.id ORDER BY q.until DESC OFFSET 4096);
    RETURN;
  END IF;
  l.released := still[greatest(1, cardinality(still) - 6):] || p_req;
  l.released_until := still_until[greatest(1, cardinality(still) - 6):] || till;
END $$;

-- When time alone could change something for a mode; nothing for never.
CREATE OR REPLACE FUNCTION distlock.time_left(l distlock.lock, p_mode int, n bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  till bigint;
  h distlock.hold;
BEGIN
  FOREACH h IN ARRAY l.holds LOOP
    till := CASE WHEN p_mode > 0 THEN least(till, h.expires) ELSE greatest(till, h.expires) END;
  END LOOP;
  IF l.delay_until > n THEN till := greatest(till, l.delay_until); END IF;
  RETURN CASE WHEN till IS NOT NULL THEN greatest(0, till - n) END;
END $$;

-- Max positions that are counted: a waiter further back is told that at least this many are ahead. To
-- count them all for each call would be quadratic in the length of the queue.
CREATE OR REPLACE FUNCTION distlock.counted() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT 1024::bigint $$;

-- How many are ahead of a waiter, as far as positions are counted.
CREATE OR REPLACE FUNCTION distlock.ahead(l distlock.lock, p_req bytea) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
  RETURN (SELECT count(*) FROM (SELECT FROM distlock.waiter w WHERE w.lock = l.id AND w.since <
    (SELECT m.since FROM distlock.waiter m WHERE m.lock = l.id AND m.req = p_req)
    LIMIT distlock.counted()) a);
END $$;

-- Whether somebody in line who is not passed over belongs to an owner.
CREATE OR REPLACE FUNCTION distlock.has_kin(p_lock bigint, p_owner text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN EXISTS (SELECT FROM distlock.waiter w
    WHERE w.lock = p_lock AND w.owner = p_owner AND w.mode = 0 AND NOT w.deaf);
END $$;

-- Undoes a request, whatever became of it.
CREATE OR REPLACE FUNCTION distlock.undo(INOUT l distlock.lock, p_req bytea, n bigint)
LANGUAGE plpgsql AS $$
DECLARE
  h distlock.hold;
  live distlock.hold[] := '{}';
  r record := distlock.quit_line(l, p_req);
BEGIN
  l := r.l;
  FOREACH h IN ARRAY l.holds LOOP
    IF h.req <> p_req OR h.phase = 2 THEN live := live || h; END IF;
  END LOOP;
  l.holds := live;
  l := distlock.spend(l, p_req, 1, n, n);
  l := distlock.promote(l, n, NULL);
END $$;
