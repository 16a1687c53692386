//! Breaking a lock: whoever holds it when the operator asks, and nobody after that one.

use distlock_core::{Force, Outcome};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::Postgres;
use sqlx::{Connection, Executor, PgConnection};

use crate::kit::{
    LONG, Named, client, client_at, give_back, line_of, run, soon, sql, take_for, task, until,
};

pub(crate) const TRIALS: &[Named] =
    &[("a_force_whose_answer_is_lost_does_not_break_the_next_holder", once)];

/// Each algorithm, what keeps its statement waiting at the server for a moment, and that statement.
const KEPT: [(&str, &str, &str); 3] = [
    ("algorithm=queue", "SELECT FROM distlock.lock WHERE name = 'a' FOR UPDATE", "%.force(%"),
    ("algorithm=version", "SELECT FROM distlock.state WHERE name = 'a' FOR UPDATE", "UPDATE%"),
    ("algorithm=advisory", "SELECT pg_advisory_xact_lock(77)", "SELECT pg_terminate_backend(%"),
];
/// Whoever looks for sessions waits while somebody has an advisory lock of another number.
const GATE: &str = "CREATE OR REPLACE VIEW distlock.signs AS \
    SELECT pid, (classid::bigint << 32) | objid::bigint AS sign, granted, waitstart \
    FROM pg_locks, (SELECT pg_advisory_xact_lock_shared(77)) gate WHERE locktype = 'advisory'";

fn once() {
    run(async {
        for (query, keep, force) in KEPT {
            let server = Postgres::new().start().await.unwrap();
            let proxy = Proxy::to(server.addr()).await.unwrap();
            let (holds, waits) = (client(&server, query).await, client(&server, query).await);
            // Time enough to send it again, on a busy machine too.
            let operator = client_at(proxy.addr(), &format!("{query}&timeout=60s")).await;
            if query == "algorithm=advisory" {
                sql(&server, GATE).await;
            }
            let first = take_for(&holds, "a", LONG).await;
            let lock = waits.lock("a").ttl(LONG);
            let waiting = task(async move { lock.acquire().await });
            line_of(&holds, "a", 1).await;
            let to = format!("postgres://postgres@{}/postgres", server.addr());
            let mut other = PgConnection::connect(&to).await.unwrap();
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("BEGIN; {keep}")))
                .execute(&mut other)
                .await
                .unwrap();
            let forcing = task(async move { operator.force("a", None, Force::Now).await });
            let waits = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND query LIKE '{force}'"
            );
            until("it has reached the server", async || sql(&server, &waits).await == "1").await;
            proxy.drop_replies();
            other.execute("COMMIT").await.unwrap();
            let next = soon("its turn", waiting).await.unwrap().unwrap();
            assert!(next.token() > first.token());
            // The connection is reset, and nobody knows what became of the statement.
            proxy.reset();
            proxy.heal();
            let forced = soon("an answer", forcing).await.unwrap();
            if let Err(e) = &forced {
                assert_eq!(e.outcome(), Outcome::Unknown, "{query}: {e:?}");
            }
            let shown = holds.show("a").await.unwrap().expect("held");
            assert_eq!(shown.holds.len(), 1, "{query}: {forced:?} {shown:?}");
            assert_eq!(shown.holds[0].holder.token, next.token(), "{query}: {forced:?}");
            assert!(next.check().is_ok(), "{query}: {forced:?}");
            give_back(next).await;
        }
    });
}
