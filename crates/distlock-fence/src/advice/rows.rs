//! The rows.

use super::Advice;

/// The rows of one effect after those of another: resources, whether a lock is needed, the answer;
/// why; the code in its language.
macro_rules! table {
    ($($effect:ident {
        $([$($resource:ident),+] $need:ident $answer:literal; $why:literal; $language:ident $code:literal;)+
    })+) => {
        &[$($(Advice {
            effect: super::Effect::$effect,
            resources: &[$(super::Resource::$resource),+],
            need: super::Need::$need,
            answer: $answer,
            why: $why,
            language: stringify!($language),
            code: $code,
        },)+)+]
    };
}

/// The table, in the order in which to read it.
pub const ADVICE: &[Advice] = table! {
    OneRow {
        [Mysql, Postgres, Sqlite] No "one conditional statement";
            "Check and write are one: nobody can be paused in between. For numbers that go up \
             and down. In a program: `take`.";
            sql "UPDATE stock SET qty = qty - 3 WHERE sku = 'teapot' AND qty >= 3;
-- no row changed: not enough";
        [Mysql, Postgres, Sqlite] No "read, change, write if the version is the same";
            "For a new value that has to be computed elsewhere. Whoever was overtaken reads \
             again; with many writers at one row that is often, and a lock saves the work. In a \
             program: `change`, or `optimistic::update`.";
            sql "SELECT body, version FROM page WHERE id = 7;             -- version 41
UPDATE page SET body = '…', version = version + 1 WHERE id = 7 AND version = 41;
-- no row changed: begin again";
        [Redis] No "one command, or one script";
            "Redis runs one script at a time. INCRBY, SET NX, HINCRBY need not even that.";
            lua "-- EVAL … 1 stock:teapot 3
if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then return 0 end
redis.call('DECRBY', KEYS[1], ARGV[1]) return 1";
        [File] WithFence "a lock, and replace the file behind its fence";
            "A file compares nothing by itself. `FencedFile` keeps the highest token beside it, \
             on disk before the data.";
            rust "let guard = locks.lock(\"config\").await?;
let new = edit(std::fs::read(\"app.toml\")?);
FencedFile::new(\"app.toml\")?.replace(guard.token(), &new)?;";
        [Http] No "ETag and If-Match";
            "The version check of HTTP: 412 when somebody was quicker, and the client reads \
             again.";
            http "PUT /page/7 HTTP/1.1
If-Match: \"41\"";
        [Other] WithFence "a lock, and a gate in front of it that compares tokens";
            "What cannot compare by itself can stand behind a small server of yours that does: \
             the permit is held for as long as the effect takes.";
            rust "let permit = gate.enter(\"printer\", token).await?;        // in the server
printer.print(&page).await?;
drop(permit);";
    }
    ManyRows {
        [Mysql, Postgres] No "one transaction, rows locked in a fixed order";
            "The database's own locks end with the transaction, whatever happens to you. Be \
             ready to run it again after a deadlock.";
            sql "BEGIN;
SELECT id FROM account WHERE id IN (3, 8) ORDER BY id FOR UPDATE;
UPDATE account SET amount = amount - 10 WHERE id = 3;
UPDATE account SET amount = amount + 10 WHERE id = 8;
COMMIT;";
        [Sqlite] No "one transaction, begun as a writer";
            "SQLite has one writer at a time. A transaction that begins by reading may find \
             itself overtaken when it wants to write.";
            sql "BEGIN IMMEDIATE;
UPDATE account SET amount = amount - 10 WHERE id = 3;
UPDATE account SET amount = amount + 10 WHERE id = 8;
COMMIT;";
        [Redis] No "one script over keys of one slot";
            "All or nothing as far as others see; but a script that fails midway is not undone, \
             so check first and write last.";
            lua "-- EVAL … 2 {bank}:3 {bank}:8 10
if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then return 0 end
redis.call('DECRBY', KEYS[1], ARGV[1]) redis.call('INCRBY', KEYS[2], ARGV[1]) return 1";
        [File, Http, Other] WithFence "a lock, and one thing at the end that compares tokens";
            "Write everything where nobody looks, and make it count by one fenced step: a new \
             generation, a pointer, a request that names the rest.";
            rust "let guard = locks.lock(\"site\").await?;
let built = build()?;                                   // a folder of its own
Generations::new(\"site/current\")?.write(guard.token(), built.as_bytes())?;";
    }
    SeveralSystems {
        [Mysql, Postgres, Sqlite] WithFence
            "a lock, and `fence` as the first line of the transaction";
            "The lock keeps others from working in vain; the fence refuses a holder that was \
             paused for longer than its lease.";
            rust "let guard = locks.lock(\"orders/42\").await?;
let label = carrier.book(&order).await?;                // another system, minutes
let mut tx = pool.begin().await?;
postgres::fence(&mut tx, \"orders/42\", guard.token()).await?;
sqlx::query(\"UPDATE orders SET label = $1 WHERE id = 42\").bind(label).execute(&mut *tx).await?;
tx.commit().await?;";
        [Redis] WithFence "a lock, and fenced keys";
            "The script compares, remembers and writes in one. The fence is as durable as the \
             Redis it is in.";
            rust "let guard = locks.lock(\"orders/42\").await?;
FencedKey::new(\"order:42\").set(&mut con, guard.token(), \"shipped\").await?;";
        [File] WithFence "a lock, and a fenced file";
            "As for one file; content that nobody may miss goes into generations.";
            rust "let guard = locks.lock(\"report\").await?;
FencedFile::new(\"report.csv\")?.replace(guard.token(), &report)?;";
        [Http] WithFence "a lock, and the token in a header";
            "The service answers 412 to a token below the highest it has seen for that resource.";
            rust "set_token(&mut request, guard.token());                 // the client
let app = router.layer(FenceLayer::new());              // the service";
        [Other] WithDelay
            "a lock with a delay after expiry, and a key that the other side knows again";
            "Nobody compares, so two may act: the delay lets what a dead holder sent arrive \
             before the next one starts, and the key makes a repeat harmless. What remains is a \
             holder paused for longer than lease and delay.";
            rust "let guard = locks.lock(\"pay/42\").lock_delay(secs(30)).await?;
guard.check_for(secs(5))?;                              // enough left for the call
bank.pay(&order, IdempotencyKey(\"pay/42\")).await?;";
    }
    Once {
        [Mysql, Postgres, Sqlite] No "`once` in the same transaction as the effect";
            "The key is inserted if it is absent; whoever comes second waits for the first to \
             end, and gets its answer. Both or neither are committed.";
            rust "match mysql::once(&mut tx, \"invoice/42\").await? {
    Once::First(first) => {
        let number = write_invoice(&mut tx).await?;
        mysql::answer(&mut tx, first, number.as_bytes()).await?;
        tx.commit().await?;
    }
    Once::AlreadyDone { answer, at } => { … }
}";
        [Redis] No "SET NX with an expiry, in the script that does it";
            "The key and the effect are in one script, so both happen or neither. The expiry \
             bounds for how long a repeat is known.";
            lua "-- EVAL … 2 {42}:once {42}:points 86400000 10
if not redis.call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[1]) then return 0 end
redis.call('INCRBY', KEYS[2], ARGV[2]) return 1";
        [File] No "create it if it is absent, whole";
            "A link to a finished file is made once; a second one fails.";
            sh "./invoice 42 > tmp.$$ && ln tmp.$$ invoice-42 && echo first; rm -f tmp.$$";
        [Http, Other] No "a key that the other side knows again; else note it first in a database";
            "With such a key, repeat until it is answered. Without, note the intent before and \
             the outcome after: what has an intent and no outcome is for a person to look at. \
             No lock makes a mail unsent.";
            http "POST /payments HTTP/1.1
Idempotency-Key: invoice-42";
    }
    Unique {
        [Mysql, Postgres, Sqlite] No "a unique index";
            "Insert, and take the refusal as the answer. Looking first is what makes two of it.";
            sql "CREATE UNIQUE INDEX one_seat ON booking (flight, seat);
INSERT INTO booking (flight, seat, who) VALUES ('LH1', '12A', 'Ada');";
        [Redis] No "SET NX, or HSETNX";
            "The first wins, and the answer says who did.";
            sh "redis-cli HSETNX flight:LH1 12A Ada";
        [File] No "create it only if it is absent";
            "The file system keeps names unique. `set -C` is O_EXCL.";
            sh "(set -C; echo Ada > seats/LH1-12A) 2>/dev/null || echo taken";
        [Http] No "PUT with If-None-Match: *";
            "412 when it is there already.";
            http "PUT /flights/LH1/seats/12A HTTP/1.1
If-None-Match: *";
        [Other] No "a unique index in a database that you have, and then the other system";
            "Where the other side keeps nothing unique, somebody must, before it is asked.";
            sql "INSERT INTO claimed (address, who) VALUES ('10.0.0.7', 'Ada');   -- address is the primary key";
    }
    WorkQueue {
        [Mysql, Postgres] No "SELECT … FOR UPDATE SKIP LOCKED";
            "Each worker takes a row that nobody else has; a worker that dies gives it back with \
             its connection. (MySQL 8.0, MariaDB 10.6, PostgreSQL 9.5.)";
            sql "BEGIN;
SELECT id, body FROM job WHERE done = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
UPDATE job SET done = 1 WHERE id = 17;
COMMIT;";
        [Sqlite] No "one UPDATE that claims and returns a job";
            "One writer at a time: the statement is short, the work comes after it. A claim that \
             is too old may be taken again, so do the work `once`.";
            sql "UPDATE job SET claimed_by = 'w7', claimed_at = unixepoch() WHERE id =
  (SELECT id FROM job WHERE done = 0 AND claimed_at < unixepoch() - 300 ORDER BY id LIMIT 1)
RETURNING id, body;";
        [Redis] No "a stream with a consumer group";
            "A job is one worker's until it is acknowledged; XAUTOCLAIM takes over what a dead \
             one left, so a job may be done twice: do it `once`.";
            sh "redis-cli XREADGROUP GROUP workers w7 COUNT 1 BLOCK 5000 STREAMS jobs '>'";
        [File] No "rename the job into your own folder";
            "A rename succeeds for one of them.";
            sh "mv -n todo/17 doing/w7-17 2>/dev/null && ./work doing/w7-17";
        [Http, Other] WithDelay "a queue made for it; for a few big jobs, a lock a job";
            "Queues hand out each message with a time limit. For a handful of long jobs a lock \
             with the job's name does as well, and the job checks what is done already.";
            sh "for job in jobs/*; do distlock run -n -E 0 \"$job\" -- ./work \"$job\"; done";
    }
};
