//! A real server, the scripts in held time, and ears on two channels.

use std::sync::LazyLock;

use distlock_core::FullName;
use distlock_core::quorum::NodeState;
use distlock_testkit::servers::{self, Server};
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Connection, Value};

use super::super::scripts::{SCRIPTS, Scripts, Source};
use super::super::{record, script_calls};
use crate::connection::{Call, Script};

/// The scripts in held time.
static HELD: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Source::Key));

/// The channels that somebody listens to.
pub(super) const HEARD: [&str; 2] = ["via-1", "via-2"];

/// The same call in held time.
fn held(mut call: Call) -> Call {
    call.script = all(&HELD).into_iter().find(|s| s.name == call.script.name).expect("a script");
    call
}

pub(super) fn all(s: &'static Scripts) -> [&'static Script; 8] {
    [&s.propose, &s.heal, &s.commit, &s.renew, &s.release, &s.cancel, &s.force, &s.inspect]
}

pub(super) struct Scene {
    _server: Server,
    pub(super) link: MultiplexedConnection,
    sink: Connection,
}

impl Scene {
    pub(super) async fn new() -> Self {
        let server = Server::start(servers::redis()).await.expect("`cargo xtask setup`");
        let client = Client::open(format!("redis://{}", server.addr())).unwrap();
        let mut link = client.get_multiplexed_async_connection().await.unwrap();
        for script in all(&SCRIPTS).into_iter().chain(all(&HELD)) {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&script.code).exec_async(&mut link).await.unwrap();
        }
        let mut sink = client.get_connection().unwrap();
        for channel in HEARD {
            redis::cmd("SUBSCRIBE").arg(channel).exec(&mut sink).unwrap();
        }
        Self { _server: server, link, sink }
    }

    /// Runs one move at one moment, then looks at the locks and at what would live for ever.
    pub(super) async fn step(
        &mut self,
        now: u64,
        call: Call,
        locks: &[FullName],
    ) -> (Value, Vec<NodeState>) {
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg("dl:clock").arg(now).arg("EX").arg(10_000).ignore();
        pipe.add_command(held(call).by_sha());
        pipe.add_command(held(script_calls::inspect(locks)).by_sha());
        pipe.cmd("EVAL").arg(FOR_EVER).arg(0);
        let (reply, seen, eternal): (Value, Value, Vec<String>) =
            pipe.query_async(&mut self.link).await.unwrap();
        assert_eq!(eternal, Vec::<String>::new(), "keys without an end");
        (reply, record::states(&seen).unwrap().1)
    }

    /// Runs one move at one moment, and looks at nothing.
    pub(super) async fn just(&mut self, now: u64, call: Call) {
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg("dl:clock").arg(now).arg("EX").arg(10_000).ignore();
        pipe.add_command(held(call).by_sha());
        pipe.exec_async(&mut self.link).await.unwrap();
    }

    pub(super) async fn run(&mut self, cmd: Cmd) -> Value {
        cmd.query_async(&mut self.link).await.unwrap()
    }

    /// Everything published so far; blocks until all of it has come.
    pub(super) async fn heard(&mut self) -> Vec<Vec<u8>> {
        for channel in HEARD {
            let mut end = redis::cmd("PUBLISH");
            end.arg(channel).arg("end");
            self.run(end).await;
        }
        let (mut messages, mut ends) = (Vec::new(), 0);
        while ends < HEARD.len() {
            let Value::Array(parts) = self.sink.recv_response().unwrap() else { panic!("odd") };
            let Some(Value::BulkString(message)) = parts.last() else { panic!("odd {parts:?}") };
            match &message[..] {
                b"end" => ends += 1,
                _ => messages.push(message.clone()),
            }
        }
        messages
    }
}

/// The keys that would live for ever.
const FOR_EVER: &str = "local out = {} \
    for _, k in ipairs(redis.call('KEYS', 'rl:*')) do \
      if redis.call('PTTL', k) < 0 then out[#out + 1] = k end \
    end return out";
