//! One connection, and the `Script` and `Call` sent over it: bounded calls out, wake-ups in, on one socket.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, engine};
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, RedisError, Value};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_util::either::Either;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::address::{Address, Credentials};
use crate::connection_task::ConnectionTask;
use crate::errors;

/// How many keys a lock has.
const KEYS: usize = 5;

/// A script that runs on the server as one step.
pub(crate) struct Script {
    /// For messages.
    pub(crate) name: &'static str,
    /// What the server runs.
    pub(crate) code: String,
    /// How the server calls it once it has seen it.
    sha: String,
    /// With how few of a lock's keys it can do its usual cases, most first.
    fewer: &'static [usize],
}

impl Script {
    /// Takes a script's text.
    pub(crate) fn new(name: &'static str, code: String) -> Self {
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { name, code, sha, fewer: &[] }
    }

    /// Says with how few of a lock's keys it can do some cases; it answers `TRYAGAIN` to others.
    pub(crate) fn fewer(mut self, fewer: &'static [usize]) -> Self {
        self.fewer = fewer;
        self
    }
}

/// One call of a script.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    /// Every key the script touches. All of them share one hash tag, except in a batch, whose keys
    /// the caller has put together by slot.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) args: Vec<Vec<u8>>,
}

impl Call {
    /// The same call with fewer keys, for a lock some of whose keys are elsewhere or nowhere. Calls
    /// about several locks have none.
    pub(crate) fn fewer(&self) -> impl Iterator<Item = Call> {
        let sizes = if self.keys.len() == KEYS { self.script.fewer } else { &[] };
        let less = |n: &usize| self.keys[..*n].to_vec();
        sizes.iter().map(move |n| Call { keys: less(n), args: self.args.clone(), ..*self })
    }

    /// By its hash: what is sent as long as the server knows the script.
    pub(crate) fn by_sha(&self) -> Cmd {
        self.command("EVALSHA", self.script.sha.as_bytes())
    }

    /// With its text: what is sent once the server has said that it does not.
    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.code.as_bytes())
    }

    fn command(&self, verb: &str, script: &[u8]) -> Cmd {
        let mut cmd = redis::cmd(verb);
        cmd.arg(script).arg(self.keys.len());
        for word in self.keys.iter().chain(&self.args) {
            cmd.arg(word.as_slice());
        }
        cmd
    }
}

/// Hears what a server tells without being asked; `None` once the connection has ended.
pub(crate) type Hears = Arc<dyn Fn(Option<&[u8]>) + Send + Sync>;

/// A call that failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// No answer in time.
    Silent(Duration),
    /// The server or the connection said so.
    Redis(RedisError),
}

impl Fault {
    /// The server's word for it.
    pub(crate) fn code(&self) -> &str {
        match self {
            Self::Silent(_) => "",
            Self::Redis(e) => e.code().unwrap_or_default(),
        }
    }

    /// What it means to a user.
    pub(crate) fn told(&self) -> Error {
        match self {
            Self::Silent(within) => errors::silent(*within),
            Self::Redis(e) => errors::calling(e),
        }
    }

    /// Whether the connection is of no more use: broken, stuck, or to a server that is no primary.
    pub(crate) fn ends_the_connection(&self) -> bool {
        match self {
            Self::Silent(_) => true,
            Self::Redis(e) => {
                e.is_unrecoverable_error()
                    || e.is_io_error()
                    || e.is_connection_dropped()
                    || matches!(
                        self.code(),
                        "READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "DLMAX"
                    )
            }
        }
    }
}

/// A connection, usable from any thread. It is driven on the library's thread; a call that is the only
/// one unanswered is written on its caller's thread.
///
/// Calls have no timers of their own: setting one for each call costs as much as the call. Answers
/// come in the order of the calls, so one look at the whole connection from time to time tells
/// whether it is stuck, and then all calls on it fail.
pub(crate) struct Connection {
    clock: Clock,
    timeout: Duration,
    over: Arc<AtomicBool>,
    calls: Arc<Calls>,
}

/// The calls of a connection.
struct Calls {
    connection: MultiplexedConnection,
    /// Writes on the caller's thread; none with TLS.
    task: Option<Arc<ConnectionTask>>,
    /// Ends the task.
    _needed: DropGuard,
    under_way: AtomicU64,
    /// When the last answer came, in nanoseconds since boot.
    heard: AtomicU64,
    /// No answer came for too long.
    stuck: CancellationToken,
    /// Somebody gave up waiting, and no answer has come since. A quorum gives a call far less time
    /// than a connection has: with nobody left to wait, one that swallows everything would never
    /// be found stuck.
    doubted: AtomicBool,
}

/// One call under way.
struct UnderWay<'a> {
    calls: &'a Calls,
    /// No other was unanswered when it began.
    alone: bool,
    ended: bool,
}

impl<'a> UnderWay<'a> {
    fn new(calls: &'a Calls) -> Self {
        let alone = calls.under_way.fetch_add(1, Ordering::AcqRel) == 0;
        Self { calls, alone, ended: false }
    }
}

impl Drop for UnderWay<'_> {
    /// Answered, failed, or nobody waits for it any more.
    fn drop(&mut self) {
        if !self.ended {
            self.calls.doubted.store(true, Ordering::Release);
        }
        self.calls.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Looks a few times within `timeout` whether answers come.
async fn watch(calls: Weak<Calls>, clock: Clock, timeout: Duration) {
    let mut quiet = clock.now();
    loop {
        clock.sleep(timeout / LOOKS).await;
        let Some(calls) = calls.upgrade() else { return };
        let now = clock.now();
        let waited_for = calls.under_way.load(Ordering::Acquire) > 0;
        if !waited_for && !calls.doubted.load(Ordering::Acquire) {
            quiet = now;
        }
        let heard = BootInstant::from_nanos(calls.heard.load(Ordering::Acquire));
        if now.since(heard.max(quiet)) < timeout / LOOKS * (LOOKS - 1) {
            continue;
        }
        // Answers may have come to callers who do not look, because their executor is blocked.
        // They come in order, so the one to a question of our own says that all before it have
        // come; and one to somebody else's question that the order is lost.
        let word = now.as_nanos().to_string();
        let mut ping = redis::cmd("PING");
        ping.arg(&word);
        let mut connection = calls.connection.clone();
        match clock.timeout(timeout / LOOKS, connection.send_packed_command(&ping)).await {
            Some(Ok(Value::BulkString(echo))) if echo == word.as_bytes() => calls.hear(&clock),
            _ => return calls.stuck.cancel(),
        }
    }
}

impl Calls {
    fn hear(&self, clock: &Clock) {
        self.heard.fetch_max(clock.now().as_nanos(), Ordering::AcqRel);
        self.doubted.store(false, Ordering::Release);
    }
}

/// How often a connection is looked at within the bound of a call.
const LOOKS: u32 = 4;

impl Connection {
    /// Connects and logs in. To be called on the library's thread, which drives the connection.
    pub(crate) async fn open(
        address: &Address,
        credentials: &Credentials,
        clock: &Clock,
        timeout: Duration,
        hears: Option<Hears>,
    ) -> Result<Self, Error> {
        let over = Arc::new(AtomicBool::new(false));
        let mut config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        if let Some(hears) = hears {
            config = config.set_push_sender(sender(over.clone(), hears));
        }
        let client = credentials.client(address)?;
        let opening = connect(&client, address, credentials.tls.is_some(), config);
        match clock.timeout(timeout, opening).await {
            Some(Ok((connection, task))) => {
                let unneeded = CancellationToken::new();
                if let Some(task) = &task {
                    engine::spawn(task.clone().drive(unneeded.clone()));
                }
                let _needed = unneeded.drop_guard();
                let (under_way, heard) = (AtomicU64::new(0), clock.now().as_nanos().into());
                let stuck = CancellationToken::new();
                let doubted = AtomicBool::new(false);
                let calls = Calls { connection, task, _needed, under_way, heard, stuck, doubted };
                let calls = Arc::new(calls);
                engine::spawn(watch(Arc::downgrade(&calls), clock.clone(), timeout));
                Ok(Self { clock: clock.clone(), timeout, over, calls })
            }
            Some(Err(e)) => Err(errors::opening(&e, address)),
            None => Err(errors::unreachable(address, timeout, credentials.tls.is_some())),
        }
    }

    /// How long an answer may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When the last answer came.
    pub(crate) fn heard(&self) -> BootInstant {
        BootInstant::from_nanos(self.calls.heard.load(Ordering::Acquire))
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.calls.stuck.is_cancelled()
    }

    /// Lets nobody use it from now on; what is under way goes on.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Sends one command.
    pub(crate) async fn send(&self, cmd: &Cmd) -> Result<Value, Fault> {
        // In a box, because what the crate makes of it is large.
        let call = Box::pin(async {
            // A handle of its own: the crate wants it mutable, and a clone is two counters.
            let mut connection = self.calls.connection.clone();
            connection.send_packed_command(cmd).await?.extract_error()
        });
        self.bounded(call).await
    }

    /// Sends a command that an ASK redirection leads here, after the word that admits it.
    pub(crate) async fn send_asking(&self, cmd: Cmd) -> Result<Value, Fault> {
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(cmd);
        let mut connection = self.calls.connection.clone();
        let call = Box::pin(connection.send_packed_commands(&both, 0, 2));
        let call = async { call.await?.pop().unwrap_or_default().extract_error() };
        self.bounded(Box::pin(call)).await
    }

    /// Runs a script: by its hash, and with its text if the server has not seen it.
    pub(crate) async fn run(&self, call: &Call, asking: bool) -> Result<Value, Fault> {
        tracing::trace!(script = call.script.name, keys = call.keys.len(), asking, "call");
        let first = match asking {
            true => Box::pin(self.send_asking(call.by_sha())).await,
            false => self.send(&call.by_sha()).await,
        };
        // The rare ways in boxes of their own: a thousand calls under way should not carry them.
        match first {
            Err(fault) if fault.code() == "NOSCRIPT" => match asking {
                true => Box::pin(self.send_asking(call.by_text())).await,
                false => Box::pin(async { self.send(&call.by_text()).await }).await,
            },
            other => other,
        }
    }

    /// Listens to a channel.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(), Fault> {
        let mut connection = self.calls.connection.clone();
        let call = connection.subscribe(channel);
        self.bounded(Box::pin(call)).await
    }

    async fn bounded<T>(
        &self,
        mut call: Pin<Box<impl Future<Output = Result<T, RedisError>>>>,
    ) -> Result<T, Fault> {
        let mut under_way = UnderWay::new(&self.calls);
        // While others are unanswered the library's thread writes: several calls in one write.
        let mut writes = under_way.alone && !engine::on_library_thread();
        let call = poll_fn(|cx| match &self.calls.task {
            // Its first poll enqueues it.
            Some(task) if std::mem::take(&mut writes) => task.write(|| call.as_mut().poll(cx)),
            _ => call.as_mut().poll(cx),
        });
        let answer = tokio::select! {
            biased;
            answer = call => {
                self.calls.hear(&self.clock);
                answer.map_err(Fault::Redis)
            }
            () = self.calls.stuck.cancelled() => Err(Fault::Silent(self.timeout)),
        };
        under_way.ended = true;
        answer
    }
}

/// Opens a connection, with its task to be run. A TLS connection is the crate's own, and driven by a
/// task of the crate: only the crate can make its stream.
async fn connect(
    client: &Client,
    address: &Address,
    tls: bool,
    config: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, Option<Arc<ConnectionTask>>), RedisError> {
    let stream = match address {
        _ if tls => {
            let opening = client.get_multiplexed_async_connection_with_config(&config);
            return Ok((opening.await?, None));
        }
        Address::Tcp { host, port } => {
            // All addresses of the host at once: one that does not answer must not use up the time.
            let opening: Vec<_> = lookup_host((host.as_str(), *port))
                .await?
                .map(|at| Box::pin(TcpStream::connect(at)))
                .collect();
            if opening.is_empty() {
                return Err(io::Error::other("the host has no address").into());
            }
            let (stream, _) = select_ok(opening).await?;
            // Small calls, several under way: without it one waits for the answer to another.
            stream.set_nodelay(true)?;
            Either::Left(stream)
        }
        Address::Unix(path) => Either::Right(UnixStream::connect(path).await?),
    };
    let login = client.get_connection_info().redis_settings();
    let (connection, run) = MultiplexedConnection::new_with_config(login, stream, config).await?;
    Ok((connection, Some(ConnectionTask::new(run))))
}

fn sender(
    over: Arc<AtomicBool>,
    hears: Hears,
) -> impl Fn(PushInfo) -> Result<(), RedisError> + Send + Sync + 'static {
    move |push: PushInfo| {
        match (push.kind, push.data.get(1)) {
            (PushKind::Message, Some(Value::BulkString(message))) => hears(Some(message)),
            (PushKind::Disconnection, _) => {
                over.store(true, Ordering::Release);
                hears(None);
            }
            _ => {}
        }
        Ok(())
    }
}
