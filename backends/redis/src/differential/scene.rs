//! A real server, the scripts in held time, and ears on two channels.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::time::Duration;

use distlock_core::{Due, FullName, Key, LockState, Reply, ReqId, Rules, Token};
use distlock_testkit::differential::{Knows, Play, Subject};
use distlock_testkit::servers::{self, Server};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Connection, Value};

use crate::connection::{Call, Script};
use crate::keys::Keys;
use crate::quarantine::Agreed;
use crate::script_calls::{self, ALL_COUNTED, Message};
use crate::scripts::{SCRIPTS, Scripts, Source, rules};

/// The scripts in held time.
static HELD: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Source::Key));

/// How long a message may take that was sent.
const SOON: Duration = Duration::from_secs(10);

/// The channels that somebody listens to.
const HEARD: [&str; 2] = ["via-1", "via-2"];

/// The same call in held time.
fn held(mut call: Call) -> Call {
    call.script = all(&HELD).into_iter().find(|s| s.name == call.script.name).expect("a script");
    call
}

fn all(scripts: &'static Scripts) -> Vec<&'static Script> {
    let s = scripts;
    let many = [&s.acquire_many, &s.release_many, &s.heartbeat, &s.renew];
    [&s.acquire, &s.release, &s.cancel, &s.force, &s.inspect].into_iter().chain(many).collect()
}

pub(super) struct Scene {
    _server: Server,
    pub(super) link: MultiplexedConnection,
    pub(super) sink: EventSink,
}

impl Scene {
    pub(super) async fn new() -> Self {
        let server = Server::start(servers::redis()).await.expect("`cargo xtask setup`");
        let client = Client::open(format!("redis://{}", server.addr())).unwrap();
        // A busy machine may let the server wait for longer than the client's half a second.
        let patient = AsyncConnectionConfig::new().set_response_timeout(None);
        let link = client.get_multiplexed_async_connection_with_config(&patient).await;
        let mut link = link.unwrap();
        for script in all(&SCRIPTS).into_iter().chain(all(&HELD)) {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&script.code).exec_async(&mut link).await.unwrap();
        }
        let sink = EventSink::new(&client);
        Self { _server: server, link, sink }
    }

    /// Runs one move at one moment, then looks at the locks and at what would live for ever.
    pub(super) async fn step(
        &mut self,
        now: u64,
        call: Call,
        locks: &[FullName],
    ) -> (Value, Vec<LockState>) {
        let keys: Vec<Keys> = locks.iter().map(Keys::of).collect();
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg("dl:clock").arg(now).arg("EX").arg(10_000).ignore();
        pipe.add_command(held(call).by_sha());
        pipe.add_command(held(script_calls::inspect(&keys)).by_sha());
        pipe.cmd("EVAL").arg(FOR_EVER).arg(0);
        let (reply, seen, eternal): (Value, Value, Vec<String>) =
            pipe.query_async(&mut self.link).await.unwrap();
        assert_eq!(eternal, Vec::<String>::new(), "keys without an end");
        (reply, script_calls::states(&seen, &keys).unwrap())
    }

    /// Runs one move at one moment.
    pub(super) async fn just(&mut self, now: u64, call: Call) {
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg("dl:clock").arg(now).arg("EX").arg(10_000).ignore();
        pipe.add_command(held(call).by_sha());
        pipe.exec_async(&mut self.link).await.unwrap();
    }

    /// Runs calls on the server's own clock, in one go.
    pub(super) async fn send(&mut self, calls: &[Call]) -> Vec<Value> {
        let mut pipe = redis::pipe();
        for call in calls {
            pipe.add_command(call.by_sha());
        }
        pipe.query_async(&mut self.link).await.unwrap()
    }

    /// The fast path of a batch, for every other request; what it does not do is asked alone.
    async fn combined(
        &mut self,
        now: u64,
        play: &Play,
        locks: &[FullName],
    ) -> Option<(Reply, Vec<LockState>)> {
        let batched = |req: &ReqId| req.as_bytes()[15].is_multiple_of(2);
        let (value, states, ttl) = match play {
            Play::Acquire { ask, via, .. } if batched(&ask.req) => {
                let keys = Keys::of(&ask.lock);
                let asks = std::iter::once((&keys, ask));
                let call = script_calls::acquire_many(asks, via, &Agreed::NONE);
                let (value, states) = self.step(now, call, locks).await;
                (value, states, Some(ask.ttl))
            }
            Play::Release { key } if batched(&key.req) => {
                let keys = Keys::of(&key.lock);
                let call = script_calls::release_many([(&keys, &key.req)].into_iter());
                let (value, states) = self.step(now, call, locks).await;
                (value, states, None)
            }
            _ => return None,
        };
        let Value::Array(answers) = value else { panic!("no list of answers") };
        let [Value::Int(n)] = answers[..] else { panic!("another number of answers") };
        if n == 0 {
            return None;
        }
        let Some(remaining) = ttl else { return Some((Reply::Released, states)) };
        let token = Token::new(n.unsigned_abs()).unwrap();
        let (block, floor) = (NonZeroU32::MIN, token);
        Some((Reply::Granted { token, block, remaining, waiters: 0, floor }, states))
    }

    pub(super) async fn run(&mut self, cmd: Cmd) -> Value {
        cmd.query_async(&mut self.link).await.unwrap()
    }
}

impl Subject for Scene {
    const VIAS: [&'static str; 4] = [HEARD[0], HEARD[1], "deaf", ""];
    const KNOWS: Knows = Knows::Sometimes;
    const SHOWS_SPENT: bool = false;

    fn rules() -> Rules {
        rules()
    }

    async fn clear(&mut self) -> u64 {
        self.run(redis::cmd("FLUSHALL")).await;
        let time: (u64, u64) = redis::cmd("TIME").query_async(&mut self.link).await.unwrap();
        time.0 * 1_000_000 + time.1
    }

    async fn play(
        &mut self,
        now: u64,
        trusted: bool,
        play: &Play,
        locks: &[FullName],
    ) -> (Vec<Reply>, Vec<LockState>) {
        if let Some((reply, states)) = self.combined(now, play, locks).await {
            return (vec![reply], states);
        }
        let counted = if trusted { ALL_COUNTED } else { "0" };
        let renewable = |key: &Key, d| (Keys::of(&key.lock), key.req, d);
        let call = match play {
            Play::Acquire { ask, wait, via } => {
                script_calls::acquire(&Keys::of(&ask.lock), ask, *wait, via, counted, &Agreed::NONE)
            }
            Play::Heartbeat { due, via } => {
                let due: Vec<_> = due.iter().map(|(key, wait)| renewable(key, *wait)).collect();
                script_calls::heartbeat(&due, via, counted)
            }
            Play::Renew { due } => {
                let due: Vec<_> = due.iter().map(|Due { key, ttl }| renewable(key, *ttl)).collect();
                script_calls::renew(&due, counted, &Agreed::NONE)
            }
            Play::Release { key } => script_calls::release(&Keys::of(&key.lock), &key.req, counted),
            Play::Cancel { key } => script_calls::cancel(&Keys::of(&key.lock), &key.req, counted),
            Play::Force { lock, token, how } => {
                script_calls::force(&Keys::of(lock), *token, *how, counted)
            }
        };
        let (value, states) = self.step(now, call, locks).await;
        let replies = match play {
            Play::Acquire { ask, .. } => script_calls::acquired(&value, ask.ttl).map(|r| vec![r]),
            Play::Heartbeat { due, .. } => script_calls::pulses(&value, due.len()),
            Play::Renew { due } => script_calls::renewals(&value, due.len()),
            Play::Release { .. } => script_calls::released(&value).map(|r| vec![r]),
            Play::Cancel { .. } => script_calls::cancelled(&value).map(|r| vec![r]),
            Play::Force { .. } => script_calls::forced(&value).map(|r| vec![r]),
        };
        (replies.unwrap(), states)
    }

    async fn heard(&mut self) -> Vec<(u8, Key)> {
        for channel in HEARD {
            let mut end = redis::cmd("PUBLISH");
            end.arg(channel).arg("end");
            self.run(end).await;
        }
        let (mut told, mut ends) = (Vec::new(), 0);
        while ends < HEARD.len() {
            match Message::parse(&self.sink.next(), Keys::lock_of) {
                Some(Message { kind, key }) => told.push((kind, key)),
                None => ends += 1,
            }
        }
        told
    }
}

/// Listens at the channels of [`HEARD`].
pub(super) struct EventSink(Connection);

impl EventSink {
    fn new(client: &Client) -> Self {
        let mut link = client.get_connection().unwrap();
        link.set_read_timeout(Some(SOON)).unwrap();
        for channel in HEARD {
            redis::cmd("SUBSCRIBE").arg(channel).exec(&mut link).unwrap();
        }
        Self(link)
    }

    /// The next message; a message that does not come soon does not come.
    pub(super) fn next(&mut self) -> Vec<u8> {
        match self.0.recv_response().unwrap() {
            Value::Array(parts) => match parts.last() {
                Some(Value::BulkString(payload)) => payload.clone(),
                other => panic!("no message: {other:?}"),
            },
            other => panic!("no message: {other:?}"),
        }
    }
}

/// The keys that would live for ever.
const FOR_EVER: &str = "local out = {} \
    for _, k in ipairs(redis.call('KEYS', 'dl:*')) do \
      if redis.call('PTTL', k) < 0 then out[#out + 1] = k end \
    end return out";
