-- For ?algorithm=advisory and row-lock, where a session holds the lock itself. What is written here is
-- the token, and for people: who holds and who waits. A row counts only while its session lives, which
-- is seen by the advisory lock ("sign") that the session has for each request.

-- The latest holder of each lock, and the highest token ever given out, which was its.
CREATE TABLE IF NOT EXISTS distlock.held (
  kind text COLLATE "C" NOT NULL,
  space text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  token bigint NOT NULL,
  granted bigint NOT NULL,
  sign bigint NOT NULL,
  pid int NOT NULL,
  req bytea NOT NULL, owner text NOT NULL, label text NOT NULL, ttl bigint NOT NULL,
  PRIMARY KEY (kind, space, name)
) WITH (fillfactor = 50);

-- Who waits. A crash of the server ends every session, so nobody waits afterwards.
CREATE UNLOGGED TABLE IF NOT EXISTS distlock.waiting (
  sign bigint PRIMARY KEY,
  pid int NOT NULL,
  kind text COLLATE "C" NOT NULL,
  space text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  since bigint NOT NULL,
  req bytea NOT NULL, owner text NOT NULL, label text NOT NULL
);
CREATE INDEX IF NOT EXISTS waiting_lock ON distlock.waiting (kind, space, name);

-- What is locked by ?algorithm=row-lock.
CREATE TABLE IF NOT EXISTS distlock.rowlock (
  space text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  PRIMARY KEY (space, name)
);

-- The advisory locks of this database with one number.
CREATE OR REPLACE VIEW distlock.signs AS
  SELECT pid, (classid::bigint << 32) | objid::bigint AS sign, granted, waitstart
  FROM pg_catalog.pg_locks
  WHERE locktype = 'advisory' AND objsubid = 1
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database());

-- Looks at a few rows after this one and takes away what nobody has used for a day; says how far it
-- came. A row that somebody has locked just now is left alone.
CREATE OR REPLACE FUNCTION distlock.sweep_held(
  p_kind text, p_most int, INOUT p_space text, INOUT p_name text
) LANGUAGE plpgsql AS $$
DECLARE
  from_space text := p_space;
  from_name text := p_name;
BEGIN
  DELETE FROM distlock.waiting w WHERE w.since < distlock.now_us() - 60000000
    AND NOT EXISTS (SELECT FROM distlock.signs s WHERE s.sign = w.sign AND s.granted);
  SELECT w.space, w.name INTO p_space, p_name FROM (
    SELECT h.space, h.name FROM distlock.held h
    WHERE h.kind = p_kind AND (h.space, h.name) > (from_space, from_name)
    ORDER BY h.space, h.name LIMIT p_most) w
  ORDER BY w.space DESC, w.name DESC LIMIT 1;
  DELETE FROM distlock.held WHERE ctid = ANY (ARRAY(
    SELECT h.ctid FROM distlock.held h
    WHERE h.kind = p_kind AND (h.space, h.name) > (from_space, from_name)
      AND (h.space, h.name) <= (p_space, p_name)
      AND h.granted < distlock.now_us() - 90000000000 AND h.token < distlock.now_us() - 90000000000
      AND NOT EXISTS (SELECT FROM distlock.signs s WHERE s.sign = h.sign AND s.granted)
    FOR UPDATE SKIP LOCKED));
  IF p_kind = 'row-lock' THEN
    DELETE FROM distlock.rowlock WHERE ctid = ANY (ARRAY(
      SELECT r.ctid FROM distlock.rowlock r
      WHERE (r.space, r.name) > (from_space, from_name)
        AND (p_name IS NULL OR (r.space, r.name) <= (p_space, p_name))
        AND NOT EXISTS (SELECT FROM distlock.held h
          WHERE h.kind = p_kind AND h.space = r.space AND h.name = r.name)
      LIMIT p_most FOR UPDATE SKIP LOCKED));
  END IF;
  -- At the end, from the beginning again.
  p_space := coalesce(p_space, '');
  p_name := coalesce(p_name, '');
END $$;
