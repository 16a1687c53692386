-- The moves, one call each: the row is locked, then the clock is read, then the rules decide.

-- Asks, asks again, confirms a promotion, or polls. p_wait is how long the request may be silent in
-- line; without it, it does not stand in line. Answers by kind:
--   1 granted:  a token, b block, c left, d waiters, e floor
--   2 in line, 3 busy:  a ahead, b left; and of the holder c token, d age, e left, owner and label
--   4 refused:  a 0 and b permits, or a 1 and b mode
--   5 ended before:  a how
CREATE OR REPLACE FUNCTION distlock.acquire(
  p_space text, p_name text, p_req bytea, p_owner text, p_mode int, p_ttl bigint, p_min bigint,
  p_delay bigint, p_label text, p_block bigint, p_via text, p_wait bigint,
  OUT kind int, OUT a bigint, OUT b bigint, OUT c bigint, OUT d bigint, OUT e bigint,
  OUT owner text, OUT label text)
LANGUAGE plpgsql AS $$
DECLARE
  l distlock.lock;
  n bigint;
  h distlock.hold;
  r record;
  stirred boolean := false;
  in_line boolean := false;
  mine int;
  place bigint;
BEGIN
  SELECT * INTO l FROM distlock.lock k WHERE k.space = p_space AND k.name = p_name FOR UPDATE;
  IF NOT FOUND THEN l := distlock.start(p_space, p_name); END IF;
  n := distlock.now_us();

  -- What a crowd does all the time has a short way past the rules: join the line. For exclusive
  -- requests while one exclusive hold lives, and only where time has changed nothing and the request
  -- has not ended: all that the rules would do first is then nothing.
  IF p_mode = 0 AND cardinality(l.holds) = 1 AND l.delay_until = 0 AND l.stones <= n
    AND (l.queued = 0 OR l.soonest > n) AND p_req <> ALL (l.released) THEN
    h := l.holds[1];
    IF h.mode = 0 AND h.expires > n AND h.req <> p_req AND h.owner <> p_owner AND p_wait IS NOT NULL
      AND l.latest < n THEN
      INSERT INTO distlock.waiter VALUES (l.id, p_req, n, n + p_wait, false, p_owner, p_mode, p_ttl,
        p_min, p_delay, p_label, p_block, p_via) ON CONFLICT DO NOTHING;
      IF FOUND THEN -- it was not in line
        UPDATE distlock.lock k SET queued = l.queued + 1, latest = n,
          soonest = CASE WHEN l.queued = 0 THEN n + p_wait ELSE least(l.soonest, n + p_wait) END
        WHERE k.space = p_space AND k.name = p_name;
        IF l.queued = 0 THEN PERFORM distlock.tell(h.via, 'c', h.req, l); END IF;
        kind := 2;
        a := l.queued;
        b := h.expires - n;
        c := h.token;
        d := greatest(0, n - h.granted);
        e := b;
        owner := h.owner;
        label := h.label;
        PERFORM distlock.need_not_last();
        RETURN;
      END IF;
    END IF;
  END IF;

  IF cardinality(l.holds) > 0 OR l.queued > 0 OR l.delay_until > 0 THEN
    r := distlock.drop_ended(l, n);
    l := r.l;
    stirred := r.stirred;
  END IF;
  IF p_wait IS NOT NULL AND (cardinality(l.holds) > 0 OR l.queued > 0) THEN
    r := distlock.hear(l, p_req, p_wait, p_via, n);
    l := r.l;
    in_line := r.in_line;
    stirred := stirred OR r.woke;
  END IF;
  IF stirred THEN l := distlock.promote(l, n, p_req); END IF;

  <<decide>>
  BEGIN
    SELECT t.how INTO a FROM distlock.ended(l, p_req, n) t;
    IF a IS NOT NULL THEN
      kind := 5;
      EXIT decide;
    END IF;
    FOR i IN 1 .. cardinality(l.holds) LOOP
      h := l.holds[i];
      CONTINUE WHEN h.req <> p_req;
      IF h.phase >= 2 THEN
        kind := 5;
        a := h.phase - 2;
        EXIT decide;
      END IF;
      IF h.phase = 1 THEN
        h.phase := 0;
        h.granted := n;
        h.expires := n + p_ttl;
        h.since := 0;
        h.deadline := 0;
        l.holds[i] := h;
        -- Others of the same owner may enter now that it is held for certain.
        l := distlock.promote(l, n, p_req);
      END IF;
      kind := 1;
      EXIT decide;
    END LOOP;

    -- What can never be granted as it stands.
    FOREACH h IN ARRAY l.holds LOOP
      IF kind IS NULL AND p_mode > 0 AND h.mode > 0 AND h.mode <> p_mode THEN
        kind := 4;
        a := 0;
        b := h.mode;
      END IF;
      IF mine IS NULL AND h.phase = 0 AND h.owner = p_owner THEN mine := h.mode; END IF;
    END LOOP;
    IF kind IS NULL AND p_mode > 0 AND l.queued > 0 THEN
      -- All who wait for permits wait for the same number of them: to look at one is enough.
      SELECT w.mode INTO b FROM distlock.waiter w WHERE w.lock = l.id AND w.mode > 0 LIMIT 1;
      IF b <> p_mode THEN
        kind := 4;
        a := 0;
      END IF;
    END IF;
    IF kind IS NULL AND mine <> p_mode THEN
      kind := 4;
      a := 1;
      b := mine;
    END IF;
    IF kind = 4 THEN
      r := distlock.quit_line(l, p_req);
      l := r.l;
      IF r.was THEN l := distlock.promote(l, n, p_req); END IF;
      EXIT decide;
    END IF;

    IF mine = p_mode OR (l.delay_until <= n AND l.queued = l.deaf AND distlock.fits(l.holds, p_mode)) THEN
      r := distlock.quit_line(l, p_req);
      l := r.l;
      h := ROW(p_req, p_owner, p_mode, p_ttl, p_min, p_delay, p_label, p_block, p_via,
        0, 0, 0, 0, 0, 0, 0)::distlock.hold;
      l := distlock.grant_to(l, h, 0, n + p_ttl, n);
      h := l.holds[cardinality(l.holds)];
      kind := 1;
      EXIT decide;
    END IF;

    IF p_wait IS NULL THEN
      r := distlock.quit_line(l, p_req);
      l := r.l;
      IF r.was THEN l := distlock.promote(l, n, p_req); END IF;
      kind := 3;
      place := l.queued;
    ELSE
      kind := 2;
      IF in_line THEN
        place := distlock.ahead(l, p_req);
      ELSE
        place := l.queued;
        IF l.queued = 0 THEN
          FOREACH h IN ARRAY l.holds LOOP PERFORM distlock.tell(h.via, 'c', h.req, l); END LOOP;
        END IF;
        h := ROW(p_req, p_owner, p_mode, p_ttl, p_min, p_delay, p_label, p_block, p_via,
          0, 0, 0, 0, 1, n, n + p_wait)::distlock.hold;
        -- Behind everybody in line and everybody who may be put back there.
        IF l.latest >= n THEN
          SELECT max(w.since) INTO h.since FROM distlock.waiter w WHERE w.lock = l.id;
          h.since := greatest(n, h.since + 1,
            (SELECT max(o.since) + 1 FROM unnest(l.holds) o WHERE o.phase = 1));
        END IF;
        l := distlock.join_line(l, h, false);
      END IF;
    END IF;
    a := place;
    b := distlock.time_left(l, p_mode, n);
    IF cardinality(l.holds) > 0 THEN
      h := l.holds[1];
      c := h.token;
      d := greatest(0, n - h.granted);
      e := greatest(0, h.expires - n);
      owner := h.owner;
      label := h.label;
    END IF;
  END;

  IF kind = 1 THEN
    a := h.token;
    b := h.block;
    c := greatest(0, h.expires - n);
    d := l.queued;
    e := h.token;
    IF cardinality(l.holds) > 1 THEN
      SELECT min(o.token) INTO e FROM unnest(l.holds) o;
    END IF;
  ELSIF kind < 4 THEN
    PERFORM distlock.need_not_last();
  END IF;
  PERFORM distlock.finish(l, n);
END $$;

-- Says that waiters are alive: one row for each, in order. State 0 in line (with how many ahead and
-- when something could change by itself), 1 its turn, 2 not known. Waiters of one lock stand
-- together, and locks in the order of their names, so that two calls never wait for each other.
--
-- Waiters of one lock are heard of together, and their positions are counted once for all of them, no
-- further than "counted" says, so that a call costs the same however long the queue is. One after the
-- other only where a beat may change the queue for the next: somebody may be let in, or one of them was
-- passed over.
CREATE OR REPLACE FUNCTION distlock.heartbeat(
  p_spaces text[], p_names text[], p_reqs bytea[], p_waits bigint[], p_via text,
  OUT state int, OUT ahead bigint, OUT time_left bigint)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
  l distlock.lock;
  n bigint;
  h distlock.hold;
  r record;
  stirred boolean;
  i int := 1;                             -- the next one
  last int := 0;                          -- of its lock
  beats bytea[];
  waits bigint[];
  turns bytea[];
BEGIN
  WHILE i <= cardinality(p_reqs) LOOP
    IF i > last THEN
      IF i > 1 THEN PERFORM distlock.finish(l, n); END IF;
      last := i;
      WHILE p_spaces[last + 1] = p_spaces[i] AND p_names[last + 1] = p_names[i] LOOP
        last := last + 1;
      END LOOP;
      l := distlock.start(p_spaces[i], p_names[i]);
      n := distlock.now_us();
      r := distlock.drop_ended(l, n);
      l := r.l;
      stirred := r.stirred;
    END IF;
    beats := p_reqs[i:last];
    IF NOT stirred AND (l.deaf = 0 OR NOT EXISTS (SELECT FROM distlock.waiter w
        WHERE w.lock = l.id AND w.req = ANY (beats) AND w.deaf)) THEN
      waits := p_waits[i:last];
      turns := '{}';
      FOR k IN 1 .. cardinality(l.holds) LOOP
        h := l.holds[k];
        IF h.phase < 2 THEN turns := turns || h.req; END IF;
        IF h.phase = 1 AND h.req = ANY (beats) THEN
          h.deadline := greatest(h.deadline, n + waits[array_position(beats, h.req)]);
          h.via := p_via;
          l.holds[k] := h;
        END IF;
      END LOOP;
      IF l.queued > 0 THEN
        UPDATE distlock.waiter w SET deadline = greatest(w.deadline, n + b.wait), via = p_via
          FROM unnest(beats, waits) AS b (req, wait) WHERE w.lock = l.id AND w.req = b.req;
      END IF;
      RETURN QUERY SELECT
        CASE WHEN b.req = ANY (turns) THEN 1 WHEN w.req IS NULL THEN 2 ELSE 0 END,
        CASE WHEN w.req IS NOT NULL THEN coalesce(first.before, distlock.counted()) END,
        CASE WHEN w.mode > 0 THEN many.till WHEN w.mode <= 0 THEN one.till END
        FROM unnest(beats) WITH ORDINALITY AS b (req, place)
        CROSS JOIN distlock.time_left(l, 1, n) AS many (till)
        CROSS JOIN distlock.time_left(l, 0, n) AS one (till)
        LEFT JOIN distlock.waiter w ON l.queued > 0 AND w.lock = l.id AND w.req = b.req
        LEFT JOIN (SELECT q.req, rank() OVER (ORDER BY q.since) - 1 AS before
          FROM (SELECT f.req, f.since FROM distlock.waiter f WHERE f.lock = l.id AND l.queued > 0
            ORDER BY f.since LIMIT distlock.counted()) q) first ON first.req = w.req
        ORDER BY b.place;
      i := last + 1;
      CONTINUE;
    END IF;
    r := distlock.hear(l, p_reqs[i], p_waits[i], p_via, n);
    l := r.l;
    IF stirred OR r.woke THEN l := distlock.promote(l, n, p_reqs[i]); END IF;
    stirred := false;
    state := 2;
    ahead := NULL;
    time_left := NULL;
    FOREACH h IN ARRAY l.holds LOOP
      IF h.req = p_reqs[i] AND h.phase < 2 THEN state := 1; END IF;
    END LOOP;
    IF state = 2 AND r.in_line THEN
      state := 0;
      ahead := distlock.ahead(l, p_reqs[i]);
      time_left := distlock.time_left(l,
        (SELECT w.mode FROM distlock.waiter w WHERE w.lock = l.id AND w.req = p_reqs[i]), n);
    END IF;
    RETURN NEXT;
    i := i + 1;
  END LOOP;
  IF cardinality(p_reqs) > 0 THEN
    PERFORM distlock.need_not_last();
    PERFORM distlock.finish(l, n);
  END IF;
END $$;

-- Extends holds that still live: one row for each, in order; never brings back one that has ended.
-- What is left and how many wait; or -1 gone, -2 taken away. Locks in the order of their names. A row
-- that somebody keeps locked is not waited for as long as for other moves: the rest must not expire.
CREATE OR REPLACE FUNCTION distlock.renew(
  p_spaces text[], p_names text[], p_reqs bytea[], p_ttls bigint[],
  OUT time_left bigint, OUT waiters int)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
  l distlock.lock;
  n bigint;
  h distlock.hold;
  r record;
BEGIN
  PERFORM set_config('lock_timeout', '1s', true);
  FOR i IN 1 .. cardinality(p_reqs) LOOP
    l := distlock.start(p_spaces[i], p_names[i]);
    n := distlock.now_us();
    r := distlock.drop_ended(l, n);
    l := r.l;
    IF r.stirred THEN l := distlock.promote(l, n, NULL); END IF;
    time_left := -1;
    waiters := 0;
    FOR k IN 1 .. cardinality(l.holds) LOOP
      h := l.holds[k];
      CONTINUE WHEN h.req <> p_reqs[i];
      IF h.phase = 0 THEN
        h.expires := greatest(h.expires, n + p_ttls[i]);
        l.holds[k] := h;
        time_left := h.expires - n;
        waiters := l.queued;
      ELSIF h.phase = 3 THEN
        time_left := -2;
      END IF;
    END LOOP;
    PERFORM distlock.finish(l, n);
    RETURN NEXT;
  END LOOP;
END $$;

-- Gives a hold back: 1 released, 2 not held any more, 3 taken away before, 4 released and somebody
-- has been told that it is its turn. That one's confirmation is waited for at the disk, which brings
-- the release there too; whoever is answered 4 looks after it.
CREATE OR REPLACE FUNCTION distlock.release(p_space text, p_name text, p_req bytea) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
  l distlock.lock;
  n bigint;
  h distlock.hold;
  w distlock.waiter;
  r record;
  at int;
  till bigint;
  answer int := 1;
BEGIN
  SELECT * INTO l FROM distlock.lock k WHERE k.space = p_space AND k.name = p_name FOR UPDATE;
  IF NOT FOUND THEN l := distlock.start(p_space, p_name); END IF;
  n := distlock.now_us();

  -- And the usual case of a crowd: the first in line is told that it is its turn, and fits alone.
  IF l.queued > l.deaf AND l.soonest > n AND l.delay_until = 0 AND cardinality(l.holds) = 1
    AND p_req <> ALL (l.released)
    AND (cardinality(l.released) < 8 OR n < ALL (l.released_until)) THEN
    h := l.holds[1];
    IF h.req = p_req AND h.phase = 0 AND h.expires > n AND h.min_hold = 0 THEN
      DELETE FROM distlock.waiter q WHERE q.lock = l.id AND q.mode = 0 AND q.req = (
          SELECT f.req FROM distlock.waiter f WHERE f.lock = l.id AND NOT f.deaf
          ORDER BY f.since LIMIT 1)
        AND (q.via = '' OR distlock.listens(q.via))
        RETURNING * INTO w;
      IF FOUND THEN
        l.hi := greatest(l.hi + 1, n);
        h := ROW(w.req, w.owner, w.mode, w.ttl, w.min_hold, w.lock_delay, w.label, w.wish, w.via,
          l.hi, least(w.wish, greatest(1, n + 1000000 - l.hi)), n + least(1000000, w.ttl), n, 1,
          w.since, w.deadline)::distlock.hold;
        l.hi := l.hi + h.block - 1;
        till := greatest(l.hi, l.stones, h.expires, h.deadline);
        UPDATE distlock.lock k SET hi = l.hi, queued = l.queued - 1, holds = ARRAY[h],
          kept_until = CASE WHEN k.kept_until >= till + 86400000000 THEN k.kept_until
            ELSE till + 90000000000 END,
          released = k.released[greatest(1, cardinality(k.released) - 6):] || p_req,
          released_until = k.released_until[greatest(1, cardinality(k.released) - 6):] || n + 60000000
        WHERE k.space = p_space AND k.name = p_name;
        PERFORM distlock.tell(w.via, 't', w.req, l), distlock.need_not_last();
        RETURN 4;
      END IF;
    END IF;
  END IF;

  r := distlock.drop_ended(l, n);
  l := r.l;
  IF r.stirred THEN l := distlock.promote(l, n, NULL); END IF;
  FOR i IN 1 .. cardinality(l.holds) LOOP
    h := l.holds[i];
    IF h.req = p_req THEN
      at := i;
      EXIT;
    END IF;
  END LOOP;
  IF at IS NULL THEN
    SELECT t.how INTO answer FROM distlock.ended(l, p_req, n) t;
    IF answer = 0 THEN
      answer := 1;
    ELSE
      -- Too late, but its holder is done with it: an acquire still under way must not bring it back.
      l := distlock.undo(l, p_req, n);
      answer := 2;
    END IF;
  ELSIF h.phase <> 2 THEN
    till := least(h.granted, n) + h.min_hold;
    IF h.phase = 0 AND till > n THEN
      h.phase := 2;
      h.expires := till;
      l.holds[at] := h;
      l := distlock.spend(l, p_req, 0, till, n);
    ELSE
      IF h.phase = 3 THEN answer := 3; END IF;
      l.holds := l.holds[:at - 1] || l.holds[at + 1:];
      l := distlock.spend(l, p_req, 0, n, n);
      l := distlock.promote(l, n, NULL);
      IF answer = 1 AND EXISTS (SELECT FROM unnest(l.holds) o WHERE o.phase = 1) THEN answer := 4; END IF;
    END IF;
  END IF;
  PERFORM distlock.finish(l, n);
  RETURN answer;
END $$;

-- Undoes a request, whatever became of it, and keeps it from coming back.
CREATE OR REPLACE FUNCTION distlock.cancel(p_space text, p_name text, p_req bytea) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  l distlock.lock := distlock.start(p_space, p_name);
  n bigint := distlock.now_us();
  r record := distlock.drop_ended(l, n);
BEGIN
  l := r.l;
  IF r.stirred THEN l := distlock.promote(l, n, NULL); END IF;
  l := distlock.undo(l, p_req, n);
  PERFORM distlock.finish(l, n);
END $$;

-- Takes the lock away from its holders, with a token only if it is one of theirs: at once, or with
-- the end of the lease. Whether there was one.
CREATE OR REPLACE FUNCTION distlock.force(p_space text, p_name text, p_token bigint, p_now boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  l distlock.lock := distlock.start(p_space, p_name);
  n bigint := distlock.now_us();
  r record := distlock.drop_ended(l, n);
  h distlock.hold;
  live distlock.hold[] := '{}';
  taken distlock.hold[] := '{}';
BEGIN
  l := r.l;
  IF r.stirred THEN l := distlock.promote(l, n, NULL); END IF;
  FOREACH h IN ARRAY l.holds LOOP
    IF p_token IS NULL OR (p_token >= h.token AND p_token < h.token + h.block) THEN
      PERFORM distlock.tell(h.via, 'x', h.req, l);
      -- Nobody believes in a claim or in a hold that was released: those end at once.
      IF p_now OR h.phase IN (1, 2) THEN h.expires := n; ELSE h.phase := 3; END IF;
      taken := taken || h;
    END IF;
    IF h.expires > n THEN live := live || h; END IF;
  END LOOP;
  l.holds := live;
  FOREACH h IN ARRAY taken LOOP
    l := distlock.spend(l, h.req, 1, h.expires, n);
  END LOOP;
  IF cardinality(taken) > 0 THEN l := distlock.promote(l, n, NULL); END IF;
  PERFORM distlock.finish(l, n);
  RETURN cardinality(taken) > 0;
END $$;
