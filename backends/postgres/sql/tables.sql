-- The layout. Times are microseconds since 1970 on this server's clock; a mode is 0 exclusive, -1
-- shared, or the number of permits; a phase is 0 held, 1 claimed, 2 lingering, 3 revoked.
CREATE TABLE IF NOT EXISTS distlock.layout (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  tables int NOT NULL,                -- of the tables; another number is another layout
  code int NOT NULL                   -- of the functions, which whoever is newer replaces
);

-- One hold of a lock. "wish" is how many tokens were asked for, "block" how many were given;
-- since and deadline are its place in line while it is only claimed.
DO $$ BEGIN
  CREATE TYPE distlock.hold AS (
    req bytea, owner text, mode int, ttl bigint, min_hold bigint, lock_delay bigint, label text,
    wish bigint, via text, token bigint, block bigint, expires bigint, granted bigint, phase int,
    since bigint, deadline bigint
  );
EXCEPTION WHEN duplicate_object THEN NULL; -- it knows no IF NOT EXISTS
END $$;

CREATE TABLE IF NOT EXISTS distlock.lock (
  space text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  id bigint GENERATED ALWAYS AS IDENTITY,
  hi bigint NOT NULL DEFAULT 0,           -- the highest token ever given out
  delay_until bigint NOT NULL DEFAULT 0,  -- nobody is granted before: a hold with a lock-delay expired
  queued int NOT NULL DEFAULT 0,          -- how many stand in line
  deaf int NOT NULL DEFAULT 0,            -- how many of those are passed over
  soonest bigint NOT NULL DEFAULT 0,      -- no deadline in line is before
  latest bigint NOT NULL DEFAULT 0,       -- no place in line is after
  stones bigint NOT NULL DEFAULT 0,       -- no cancelled request is remembered after
  kept_until bigint NOT NULL DEFAULT 0,   -- the row may go after this: never near, seldom changed
  holds distlock.hold[] NOT NULL DEFAULT '{}',
  released bytea[] NOT NULL DEFAULT '{}', -- the latest requests that were released
  released_until bigint[] NOT NULL DEFAULT '{}', -- and until when each is remembered
  PRIMARY KEY (space, name)
) WITH (fillfactor = 50);
CREATE INDEX IF NOT EXISTS lock_kept ON distlock.lock (kept_until);

CREATE TABLE IF NOT EXISTS distlock.waiter (
  lock bigint NOT NULL,
  req bytea NOT NULL,
  since bigint NOT NULL,                  -- its place
  deadline bigint NOT NULL,               -- dropped then unless heard of
  deaf boolean NOT NULL,                  -- passed over until heard of
  owner text NOT NULL, mode int NOT NULL, ttl bigint NOT NULL, min_hold bigint NOT NULL,
  lock_delay bigint NOT NULL, label text NOT NULL, wish bigint NOT NULL, via text NOT NULL,
  PRIMARY KEY (lock, req)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS waiter_line ON distlock.waiter (lock, since);
CREATE INDEX IF NOT EXISTS waiter_owner ON distlock.waiter (lock, owner, since);

-- Cancelled requests that must never come back.
CREATE TABLE IF NOT EXISTS distlock.spent (
  lock bigint NOT NULL, req bytea NOT NULL, until bigint NOT NULL,
  PRIMARY KEY (lock, req)
);
CREATE INDEX IF NOT EXISTS spent_until ON distlock.spent (lock, until);

-- For ?algorithm=version: a lock's whole state as text, changed only if its version is what it was.
CREATE TABLE IF NOT EXISTS distlock.state (
  space text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  version bigint NOT NULL,
  state text NOT NULL,
  idle_from bigint NOT NULL,              -- the row may go a day after this
  PRIMARY KEY (space, name)
) WITH (fillfactor = 50);
