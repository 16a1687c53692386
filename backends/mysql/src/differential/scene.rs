//! A real server in held time: a session's `timestamp` is what its statements take for now.

use distlock_core::state::{Claim, Pulse};
use distlock_core::{
    Effects, FullName, Key, LockState, Name, Namespace, Op, Reply, ReqId, Rules, StoreUrl,
};
use distlock_sql::Opens;
use distlock_testkit::differential::{Knows, Play, Subject};
use distlock_testkit::servers::{Mariadb, Server};
use sqlx::{MySqlConnection, Row};

use crate::connector::Connector;
use crate::fast_path::{self, Fast};
use crate::open::Target;
use crate::queue::Line;
use crate::record::{COLUMNS, Record, rules};
use crate::schema::Tables;
use crate::slow_path::SlowPath;
use crate::sql::{Given, at, number, run};

/// Where the clock is held when a sequence begins.
pub(super) const START: u64 = 1_750_000_000_000_000;

/// This process and another; not the name of a process; none.
const VIAS: [&str; 4] =
    ["00000000000000000000000000000001", "00000000000000000000000000000002", "deaf", ""];

pub(super) struct Scene {
    _server: Server,
    connector: Connector,
    pub(super) conn: MySqlConnection,
    slow_path: SlowPath,
    fast: Fast,
    /// What those of this process were told.
    told: Vec<(u8, Key)>,
    /// How many turns were confirmed by one statement.
    pub(super) confirmed: usize,
}

impl Scene {
    pub(super) async fn new() -> Self {
        Self::reading(crate::queue::SHORT).await
    }

    /// One where any line is a long one.
    pub(super) async fn with_long_lines() -> Self {
        Self::reading(0).await
    }

    async fn reading(short: usize) -> Self {
        let server = Mariadb::new().start().await.expect("`cargo xtask setup`");
        let target = Target::of(StoreUrl::parse(&Mariadb::url(&server)).unwrap()).unwrap();
        target.greet().await.unwrap();
        let connector = Connector::new(target.to, None);
        let conn = connector.open().await.unwrap();
        let fast = Fast::new(&target.tables);
        let (session, collisions) = (VIAS[0].to_owned(), Default::default());
        let sweep = Default::default();
        let slow_path = SlowPath { tables: target.tables, session, collisions, short, sweep };
        Self { _server: server, connector, conn, slow_path, fast, told: Vec::new(), confirmed: 0 }
    }

    pub(super) fn tables(&self) -> Tables {
        self.slow_path.tables.clone()
    }

    /// Somebody else's connection, whose time is not held.
    pub(super) async fn other(&self) -> MySqlConnection {
        self.connector.open().await.unwrap()
    }

    pub(super) async fn sql(&mut self, sql: String) -> Vec<Given> {
        run(&mut self.conn, sql).await.unwrap()
    }

    /// How many rows the server has read for this connection so far.
    pub(super) async fn rows_read(&mut self) -> u64 {
        let given = self.sql("SHOW SESSION STATUS LIKE 'Handler_read%'".to_owned()).await;
        let value = |row: &sqlx::mysql::MySqlRow| row.try_get::<String, _>(1).unwrap();
        given[0].rows.iter().map(|row| value(row).parse::<u64>().unwrap()).sum()
    }

    /// Fast path: the heartbeats of many waiters.
    pub(super) async fn beat_all(&mut self, lock: &FullName, reqs: &[ReqId]) -> Vec<Pulse> {
        let wait = std::time::Duration::from_secs(300);
        let beats: Vec<_> = reqs.iter().map(|req| (*req, wait)).collect();
        let pulses = self.slow_path.beat(&mut self.conn, lock, &beats).await.ok().unwrap();
        pulses.expect("nothing but that to do")
    }

    pub(super) async fn at(&mut self, now: u64) {
        self.sql(format!("SET timestamp={}.{:06}", now / 1_000_000, now % 1_000_000)).await;
    }

    /// The long way.
    pub(super) async fn play(&mut self, lock: &FullName, ops: &[Op], via: &str) -> Vec<Reply> {
        let played = self.slow_path.play(&mut self.conn, lock, ops, via).await.unwrap();
        let Effects { turns, contended, revoked } = played.ours;
        for (kind, all) in [(b't', turns), (b'c', contended), (b'x', revoked)] {
            let key = |req| Key { lock: lock.clone(), req };
            self.told.extend(all.into_iter().map(|(req, _)| (kind, key(req))));
        }
        played.replies
    }

    /// Fast path: confirm a promotion. Also for those who are not in line: a row says itself whose
    /// turn it is.
    pub(super) async fn confirm(&mut self, lock: &FullName, claim: &Claim) -> Option<Reply> {
        let reply = self.fast.confirm(&mut self.conn, lock, claim).await.ok().unwrap();
        self.confirmed += usize::from(reply.is_some());
        reply
    }

    /// The fast path, where the store would take it, or else the full transaction.
    pub(super) async fn one(&mut self, lock: &FullName, op: Op, via: &str) -> Reply {
        let conn = &mut self.conn;
        let quick = match &op {
            Op::Acquire { claim, .. } => {
                let taken = match fast_path::fits(claim) {
                    true => self.fast.acquire(conn, lock, claim).await.unwrap(),
                    false => None,
                };
                match taken {
                    None => self.confirm(lock, claim).await,
                    taken => taken,
                }
            }
            Op::Release { req } => {
                let key = Key { lock: lock.clone(), req: *req };
                self.fast.release(conn, &key).await.unwrap().then_some(Reply::Released)
            }
            Op::Renew { req, ttl } => {
                let due = [(lock.clone(), *req, *ttl)];
                self.fast.renew(conn, &due).await.unwrap().remove(0).unwrap()
            }
            _ => None,
        };
        match quick {
            Some(reply) => reply,
            None => self.play(lock, &[op], via).await.remove(0),
        }
    }

    /// All of a lock in one call, as the store does it: the fast path only where nobody's address
    /// has changed.
    async fn beat(
        &mut self,
        lock: &FullName,
        beats: Vec<(ReqId, std::time::Duration)>,
        via: &str,
    ) -> Vec<Reply> {
        let state = self.state(lock).await;
        let moved =
            |req: &ReqId| state.queue.iter().any(|w| w.claim.req == *req && w.claim.via != via);
        if !beats.iter().any(|(req, _)| moved(req))
            && let Some(pulses) =
                self.slow_path.beat(&mut self.conn, lock, &beats).await.ok().unwrap()
        {
            return pulses.into_iter().map(Reply::Pulse).collect();
        }
        let beat = |(req, wait)| Op::Heartbeat { req, wait };
        self.play(lock, &beats.into_iter().map(beat).collect::<Vec<_>>(), via).await
    }

    /// The whole state of a lock. Its line is as long as its row says.
    pub(super) async fn state(&mut self, lock: &FullName) -> LockState {
        let (t, at) = (&self.slow_path.tables, at(lock));
        let sql = format!(
            "SELECT {COLUMNS} FROM {} WHERE {at}; \
             SELECT req, since, deadline, deaf, claim FROM {} WHERE {at}",
            t.lock, t.wait
        );
        let given = self.sql(sql).await;
        let record = given[0].rows.first().map(|r| Record::read(r).unwrap());
        let Record { mut state, waiters } = record.unwrap_or_else(Record::none);
        assert_eq!(waiters, given[1].rows.len() as u64, "the count of those in line");
        let line = Line::of(&given[1].rows, &[], 0, true).unwrap();
        state.queue = line.read.into_values().collect();
        state
    }
}

impl Subject for Scene {
    const VIAS: [&'static str; 4] = VIAS;
    const KNOWS: Knows = Knows::Afterwards;
    const SHOWS_SPENT: bool = true;

    fn rules() -> Rules {
        rules()
    }

    async fn clear(&mut self) -> u64 {
        let Tables { lock, wait, news, .. } = &self.slow_path.tables;
        let sql = format!("DELETE FROM {lock}; DELETE FROM {wait}; DELETE FROM {news}");
        self.sql(sql).await;
        self.told.clear();
        START
    }

    async fn play(
        &mut self,
        now: u64,
        _trusted: bool,
        play: &Play,
        locks: &[FullName],
    ) -> (Vec<Reply>, Vec<LockState>) {
        self.at(now).await;
        let mut replies = Vec::new();
        match play {
            Play::Acquire { ask, wait, via } => {
                let op = Op::Acquire { claim: Claim::of(ask, *via), wait: *wait };
                replies.push(self.one(&ask.lock, op, via).await);
            }
            Play::Heartbeat { due, via } => {
                replies = vec![Reply::Settled; due.len()];
                for lock in locks {
                    let mine: Vec<usize> =
                        (0..due.len()).filter(|i| due[*i].0.lock == *lock).collect();
                    if mine.is_empty() {
                        continue;
                    }
                    let beats = mine.iter().map(|i| (due[*i].0.req, due[*i].1)).collect();
                    let got = self.beat(lock, beats, via).await;
                    mine.into_iter().zip(got).for_each(|(i, reply)| replies[i] = reply);
                }
            }
            Play::Renew { due } => {
                for d in due {
                    let op = Op::Renew { req: d.key.req, ttl: d.ttl };
                    replies.push(self.one(&d.key.lock, op, "").await);
                }
            }
            Play::Release { key } => {
                replies.push(self.one(&key.lock, Op::Release { req: key.req }, "").await);
            }
            Play::Cancel { key } => {
                replies.push(self.one(&key.lock, Op::Cancel { req: key.req }, "").await);
            }
            Play::Force { lock, token, how } => {
                let op = Op::Force { token: *token, how: *how };
                replies.push(self.one(lock, op, "").await);
            }
        }
        let mut states = Vec::new();
        for lock in locks {
            states.push(self.state(lock).await);
        }
        (replies, states)
    }

    /// What was said to our own, and the news of the other process.
    async fn heard(&mut self) -> Vec<(u8, Key)> {
        let news = &self.slow_path.tables.news;
        let sql = format!("SELECT kind, space, name, req FROM {news}; DELETE FROM {news}");
        let given = self.sql(sql).await;
        let mut told = std::mem::take(&mut self.told);
        for row in &given[0].rows {
            let bytes = |column| row.try_get::<Vec<u8>, _>(column).unwrap();
            let text = |column| String::from_utf8(bytes(column)).unwrap();
            let lock = FullName {
                space: Namespace::new(text("space")).unwrap(),
                name: Name::new(text("name")).unwrap(),
            };
            let req = ReqId::from_bytes(bytes("req").try_into().unwrap());
            let kind = b" tcx"[usize::try_from(number(row, "kind").unwrap()).unwrap()];
            told.push((kind, Key { lock, req }));
        }
        told
    }
}
