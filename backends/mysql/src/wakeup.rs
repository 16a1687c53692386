//! How a process is told that one of its waiters' turn has come, without asking all the time.
//!
//! 1. It has one connection that sleeps inside a statement of the server: its wake-up connection.
//!    It sleeps in `GET_LOCK`, for a name that another connection of the process has taken for
//!    good. Not in `SLEEP`: there, rings that come close together take MariaDB two seconds and
//!    more, as was measured, and others wait behind them. Probably all that sleep there share a
//!    mutex, which one that is woken keeps while it asks whether it was killed.
//! 2. A promotion of one of its waiters is written to the table of news, in the same transaction,
//!    and ends the sleep with `KILL QUERY`, before it writes the rest and commits.
//! 3. The wake-up connection wakes, reads its news, hands them out and sleeps again. Its statement
//!    looks for news before it sleeps, so a ring that comes a moment too early is not lost; at
//!    MariaDB it is a block that has let go of the table by then, because a statement that uses a
//!    table keeps `ALTER` and `FLUSH TABLES WITH READ LOCK` waiting, and everybody else behind
//!    those. MySQL has no such blocks: there it sleeps for a second at a time. If the process has a
//!    single waiter, that waiter asks at once, while the news are still being read.
//! 4. What was handed out is cleared away a few at a time, or once nothing happens: each time is a
//!    commit, which others would wait behind.
//!
//! The wake-up connection is found through `GET_LOCK`: it holds a user lock whose name is made of the
//! process's session, and `IS_USED_LOCK` finds its number, or nothing. A second name on a
//! connection that never sleeps says whether the process lives: the server misses that one at once.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use distlock_core::{
    Clock, Effects, Error, EventSink, FullName, Kind, Micros, Mutex, Name, Namespace, ReqId, Wake,
    engine,
};
use distlock_sql::{Opens, wakes};
use sqlx::mysql::MySqlRow;
use sqlx::{MySqlConnection, Row};
use tokio::sync::watch;

use crate::errors::{INTERRUPTED, calling};
use crate::sql::{hex, number, run};
use crate::{connector::Connector, schema::Tables};

/// How long the wake-up connection sleeps before it shows that it lives.
const SLEEP: Duration = Duration::from_secs(20);
/// How long it sleeps while there is something to clear away.
const NAP: Duration = Duration::from_secs(1);
/// How long while the connection that it sleeps beside is away.
const AWAY: Duration = Duration::from_secs(5);
/// News are cleared away after this many.
const CLEAR: usize = 16;
/// How much longer than that its answer may take.
const GRACE: Duration = Duration::from_secs(10);
/// How long a waiter waits for the wake-up connection before it makes do without.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two tries to get a wake-up connection.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

const TURN: u8 = 1;
const CONTENDED: u8 = 2;
const REVOKED: u8 = 3;

/// A new session: what others know this process by.
pub(crate) fn session() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| {
        Error::new(Kind::Store, "the operating system gives no random bytes").because(e)
    })?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Whether a text from a table is a session: it becomes part of statements.
pub(crate) fn is_session(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The name that a process's idle connection has taken.
pub(crate) fn life_sign(session: &str) -> String {
    format!("dl:s:{session}")
}

/// The name that a process's wake-up connection has taken.
fn wakeup_sign(session: &str) -> String {
    format!("dl:b:{session}")
}

/// The name that the wake-up connection sleeps for; the connection with the sign of life has it.
pub(crate) fn sleep_lock(session: &str) -> String {
    format!("dl:p:{session}")
}

/// Wakes a process; fails when it has no wake-up connection, or, where it counts, when it is gone
/// though that connection has not been missed yet.
pub(crate) fn ring((session, counts): (&str, bool)) -> String {
    let (life, wakeup) = (life_sign(session), wakeup_sign(session));
    if !counts {
        return format!("KILL QUERY IS_USED_LOCK('{wakeup}')");
    }
    format!("KILL QUERY IF(IS_USED_LOCK('{life}') IS NULL, 0, IS_USED_LOCK('{wakeup}'))")
}

/// Ends a process's wake-up connection, and clears away what it has not yet.
pub(crate) fn unhang(session: &str, tables: &Tables) -> String {
    let (news, wakeup) = (&tables.news, wakeup_sign(session));
    format!(
        "DELETE FROM {news} WHERE session='{session}'; KILL CONNECTION IS_USED_LOCK('{wakeup}')"
    )
}

/// What other processes are to be told.
#[derive(Default)]
pub(crate) struct News(Vec<(u8, ReqId, String)>);

impl News {
    /// Parts effects into those for ourselves and news for others.
    pub(crate) fn sort(effects: Effects, session: &str) -> (Effects, Self) {
        let mut news = Vec::new();
        let mut part = |kind, all: Vec<(ReqId, String)>| -> Vec<(ReqId, String)> {
            let (ours, others): (Vec<_>, _) = all.into_iter().partition(|(_, via)| via == session);
            let reachable = others.into_iter().filter(|(_, via)| is_session(via));
            news.extend(reachable.map(|(req, via)| (kind, req, via)));
            ours
        };
        let ours = Effects {
            turns: part(TURN, effects.turns),
            contended: part(CONTENDED, effects.contended),
            revoked: part(REVOKED, effects.revoked),
        };
        (ours, Self(news))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The statement that writes them down; nothing when there are none.
    pub(crate) fn insert(&self, tables: &Tables, lock: &FullName, now: Micros) -> String {
        let row = |(kind, req, via): &(u8, ReqId, String)| {
            let (space, name) = (hex(lock.space.as_str()), hex(lock.name.as_str()));
            format!("('{via}',{kind},{space},{name},{},{})", hex(req.as_bytes()), now.0)
        };
        let rows: Vec<String> = self.0.iter().map(row).collect();
        if rows.is_empty() {
            return String::new();
        }
        let (table, rows) = (&tables.news, rows.join(","));
        format!("INSERT INTO {table} (session, kind, space, name, req, at) VALUES {rows}")
    }

    /// The processes to wake, and whether a turn depends on it.
    pub(crate) fn rings(&self) -> Vec<(&str, bool)> {
        let mut rings = std::collections::BTreeMap::new();
        for (kind, _, via) in &self.0 {
            *rings.entry(via.as_str()).or_default() |= *kind == TURN;
        }
        rings.into_iter().collect()
    }

    /// Waiters that were promoted and listen at one of these.
    pub(crate) fn turns_of(&self, rings: &[(&str, bool)]) -> Vec<ReqId> {
        let meant = |(kind, _, via): &&(u8, ReqId, String)| {
            *kind == TURN && rings.iter().any(|(wakeup, _)| wakeup == via)
        };
        self.0.iter().filter(meant).map(|(_, req, _)| *req).collect()
    }
}

/// Tells those of this process.
pub(crate) fn tell(sink: &OnceLock<EventSink>, lock: &FullName, effects: Effects) {
    let Some(sink) = sink.get() else { return };
    wakes(lock, effects).for_each(|(_, wake)| sink(wake));
}

/// Looks for news and sleeps if there are none: one statement, so that a ring in between ends it.
/// Within a block (MariaDB) the look lets go of its table before the sleep begins.
fn sleep(news: &str, bed: &str, blocks: bool) -> String {
    let news = format!("EXISTS(SELECT 1 FROM {news})");
    if !blocks {
        return format!("SELECT IF({news}, 0, {bed}) AS rung");
    }
    format!(
        "BEGIN NOT ATOMIC DECLARE woken BIGINT DEFAULT 0; \
         IF NOT {news} THEN SET woken = {bed}; END IF; SELECT woken AS rung; END"
    )
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Off,
    Starting,
    Listening,
    /// Could not be had just now.
    Silent,
    Closed,
}

/// The wake-up connection of a process, made when it is first needed.
pub(crate) struct WakeupConnection(Arc<Inner>);

struct Inner {
    connector: Connector,
    session: String,
    table: String,
    clock: Clock,
    sink: Arc<OnceLock<EventSink>>,
    /// Waiters of this process.
    waiting: Arc<Mutex<HashSet<ReqId>>>,
    state: watch::Sender<State>,
}

impl WakeupConnection {
    pub(crate) fn new(
        to: sqlx::mysql::MySqlConnectOptions,
        session: &str,
        tables: &Tables,
        clock: &Clock,
        (sink, waiting): (&Arc<OnceLock<EventSink>>, &Arc<Mutex<HashSet<ReqId>>>),
    ) -> Self {
        Self(Arc::new(Inner {
            connector: Connector::new(to, Some(wakeup_sign(session))),
            session: session.to_owned(),
            table: tables.news.clone(),
            clock: clock.clone(),
            sink: Arc::clone(sink),
            waiting: Arc::clone(waiting),
            state: watch::Sender::new(State::Off),
        }))
    }

    /// Sees to it that there is one, without waiting for it.
    pub(crate) fn start(&self) {
        let begun = self.0.state.send_if_modified(|state| {
            let off = *state == State::Off;
            if off {
                *state = State::Starting;
            }
            off
        });
        if begun {
            engine::spawn(listen_for_ever(Arc::clone(&self.0)));
        }
    }

    /// Whether it listens; waits a little for one that is only just starting.
    pub(crate) async fn listens(&self) -> bool {
        self.start();
        let mut state = self.0.state.subscribe();
        let settled = state.wait_for(|s| *s != State::Starting);
        let settled = self.0.clock.timeout(PATIENCE, settled).await;
        matches!(settled, Some(Ok(s)) if *s == State::Listening)
    }

    /// Whether it listens just now.
    pub(crate) fn is_heard(&self) -> bool {
        *self.0.state.borrow() == State::Listening
    }

    /// Says whether there was one.
    pub(crate) fn close(&self) -> bool {
        self.0.state.send_replace(State::Closed) == State::Listening
    }
}

async fn listen_for_ever(wakeup: Arc<Inner>) {
    let mut closed = wakeup.state.subscribe();
    let listening = async {
        let mut pause = PAUSE.0;
        loop {
            let Err(e) = wakeup.listen(&mut pause).await;
            tracing::debug!(error = %e, "no wake-up connection: polling instead");
            if wakeup.set(State::Silent) {
                // Waiters that counted on it poll from now on.
                wakeup.ring_all();
            }
            wakeup.clock.sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    };
    tokio::select! {
        biased;
        _ = closed.wait_for(|s| *s == State::Closed) => {}
        () = listening => {}
    }
}

impl Inner {
    fn ring_all(&self) {
        if let Some(sink) = self.sink.get() {
            sink(Wake::Everybody);
        }
    }

    /// Whether that is a change.
    fn set(&self, to: State) -> bool {
        self.state.send_if_modified(|state| {
            let change = *state != State::Closed && *state != to;
            if change {
                *state = to;
            }
            change
        })
    }

    /// A ring, and only one waits: it is hardly meant for another. If it is, a question was asked for
    /// nothing.
    fn ring_the_only_one(&self) {
        let waiting = self.waiting.lock();
        let mut all = waiting.iter();
        if let (Some(req), None, Some(sink)) = (all.next(), all.next(), self.sink.get()) {
            sink(Wake::Turn(*req));
        }
    }

    /// Hands out news until the connection breaks.
    async fn listen(&self, pause: &mut Duration) -> Result<std::convert::Infallible, Error> {
        let mut conn = self.bounded(self.connector.open()).await?;
        // Without a view of old rows kept open while it sleeps, which would keep the server from
        // clearing them away. What it sees too early it only takes for a hint.
        let dirty = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";
        self.ask(&mut conn, dirty.to_owned()).await?;
        let version =
            self.ask(&mut conn, "SELECT VERSION() LIKE '%MariaDB%' AS maria".into()).await?;
        let blocks = version.first().is_some_and(|row| number(row, "maria").is_ok_and(|n| n == 1));
        self.set(State::Listening);
        *pause = PAUSE.0;
        // What was sent while there was no wake-up connection.
        self.ring_all();
        let Self { table, session, .. } = self;
        // Handed out, but not cleared away. Not kept for the next connection: a server that crashed
        // may give a number out again that it never wrote down.
        let mut seen: Vec<String> = Vec::new();
        let asleep = |seconds| format!("GET_LOCK('{}', {seconds})", sleep_lock(session));
        let mut awake = false;
        loop {
            // By their numbers: one with a lower number may yet be committed.
            let ids = seen.join(",");
            let new = match seen.is_empty() {
                true => format!("{table} WHERE session='{session}'"),
                false => format!("{table} WHERE session='{session}' AND id NOT IN ({ids})"),
            };
            let length = if seen.is_empty() && blocks { SLEEP } else { NAP }.as_secs();
            let bed = if awake { format!("SLEEP({})", AWAY.as_secs()) } else { asleep(length) };
            let woken = self.ask(&mut conn, sleep(&new, &bed, blocks)).await?;
            let rung = woken.first().and_then(|row| number(row, "rung").ok());
            // The other connection is away, as nobody has needed it lately: a nap has to do.
            awake = !awake && rung == Some(1);
            if awake {
                self.ask(&mut conn, format!("DO RELEASE_LOCK('{}')", sleep_lock(session))).await?;
            } else if rung != Some(0) {
                self.ring_the_only_one();
            }
            let read = format!("SELECT id, kind, space, name, req FROM {new}");
            let rows = self.ask(&mut conn, read).await?;
            for row in &rows {
                seen.push(number(row, "id").map_err(|e| calling(e).error)?.to_string());
                self.hand_out(row).map_err(|e| calling(e).error)?;
            }
            if seen.len() >= CLEAR || (rows.is_empty() && !seen.is_empty()) {
                let ids = seen.join(",");
                let delete =
                    format!("DELETE FROM {table} WHERE session='{session}' AND id IN ({ids})");
                self.ask(&mut conn, delete).await?;
                seen.clear();
            }
        }
    }

    /// One statement; that it was interrupted is what it is there for.
    async fn ask(&self, conn: &mut MySqlConnection, sql: String) -> Result<Vec<MySqlRow>, Error> {
        let asked = self.bounded(async {
            match run(conn, sql).await {
                Ok(given) => Ok(given.into_iter().flat_map(|g| g.rows).collect()),
                Err(e) if crate::errors::number(&e) == Some(INTERRUPTED) => Ok(Vec::new()),
                Err(e) => Err(calling(e).error),
            }
        });
        asked.await
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let late = || Error::new(Kind::Unreachable, "the wake-up connection does not answer");
        self.clock.timeout(SLEEP + GRACE, work).await.unwrap_or_else(|| Err(late()))
    }

    fn hand_out(&self, row: &MySqlRow) -> Result<(), sqlx::Error> {
        let text = |column| -> Result<String, sqlx::Error> {
            Ok(String::from_utf8_lossy(&row.try_get::<Vec<u8>, _>(column)?).into_owned())
        };
        let req: Vec<u8> = row.try_get("req")?;
        let (Ok(space), Ok(name), Ok(req)) =
            (Namespace::new(text("space")?), Name::new(text("name")?), <[u8; 16]>::try_from(req))
        else {
            return Ok(()); // not written by us
        };
        let mut effects = Effects::default();
        let told = match u8::try_from(number(row, "kind")?) {
            Ok(TURN) => &mut effects.turns,
            Ok(CONTENDED) => &mut effects.contended,
            Ok(REVOKED) => &mut effects.revoked,
            _ => return Ok(()),
        };
        told.push((ReqId::from_bytes(req), String::new()));
        tell(&self.sink, &FullName { space, name }, effects);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use distlock_core::url::StoreUrl;
    use distlock_testkit::servers::Mariadb;

    use super::*;
    use crate::open::Target;

    /// Rings at any moment of a wake-up connection that goes to sleep and wakes: each ends its sleep.
    #[tokio::test]
    async fn no_ring_is_lost() {
        let server = Mariadb::new().start().await.expect("`cargo xtask setup`");
        let target = Target::of(StoreUrl::parse(&Mariadb::url(&server)).unwrap()).unwrap();
        target.greet().await.unwrap();
        let news = target.tables.news.clone();
        let connector = Connector::new(target.to, None);
        let (mut wakeup, mut ringer) =
            (connector.open().await.unwrap(), connector.open().await.unwrap());
        let mut keeper = connector.open().await.unwrap();
        run(&mut keeper, "DO GET_LOCK('pillow', 0)".into()).await.unwrap();
        let dirty = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";
        let id = run(&mut wakeup, format!("{dirty}; SELECT CONNECTION_ID() AS id")).await.unwrap();
        let id = number(&id[1].rows[0], "id").unwrap();
        let (heard, mut hears) = tokio::sync::mpsc::unbounded_channel();
        let mine = format!("{news} WHERE session='s'");
        #[allow(clippy::disallowed_methods)] // on the runtime that its connection belongs to
        tokio::spawn(async move {
            loop {
                // Only a lost ring sleeps on for so long.
                let bed = "GET_LOCK('pillow', 20)";
                if let Err(e) = run(&mut wakeup, sleep(&mine, bed, true)).await {
                    assert_eq!(crate::errors::number(&e), Some(INTERRUPTED), "{e}");
                }
                let clear = format!("DELETE FROM {mine}");
                // The ring may come that late, too.
                while run(&mut wakeup, clear.clone()).await.is_err() {}
                if heard.send(()).is_err() {
                    return;
                }
            }
        });
        let clock = Clock::system();
        for n in 0..200u64 {
            // The next ring comes while it reads, while it goes to sleep, or later.
            let wait = Duration::from_micros(n * 7919 % 1500);
            clock.sleep(wait).await;
            let ring = format!(
                "INSERT INTO {news} (session, kind, space, name, req, at) \
                 VALUES ('s', 1, '', 'a', REPEAT('x', 16), 0); KILL QUERY {id}"
            );
            run(&mut ringer, ring).await.unwrap();
            let left = format!("SELECT 1 FROM {news} LIMIT 1");
            while !run(&mut ringer, left.clone()).await.unwrap()[0].rows.is_empty() {
                let woken = clock.timeout(Duration::from_secs(10), hears.recv()).await;
                assert!(woken.is_some(), "ring {n} was lost");
            }
        }
    }
}
