//! How to start a server and how to know that it answers.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use distlock_core::{Clock, Error, Kind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use rustix::process::Signal;

use super::account::Account;

type Args = Arc<dyn Fn(u16, &Path) -> Vec<String> + Send + Sync>;
type LayOut = Arc<dyn Fn(&Path) -> Result<(), Error> + Send + Sync>;

/// What makes a data directory before the first start.
#[derive(Clone)]
pub(super) struct Prepare {
    pub(super) binary: String,
    /// In the data directory once it has been done.
    pub(super) makes: String,
    pub(super) args: Args,
}

/// How a program is asked to end.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    /// In order.
    pub(super) stop: Signal,
    /// At once, but without leaving anything on the machine.
    pub(super) quit: Option<Signal>,
}

/// A server program, not yet started.
#[derive(Clone)]
pub struct Program {
    pub(super) binary: String,
    pub(super) package: String,
    pub(super) args: Args,
    pub(super) env: Vec<(String, OsString)>,
    pub(super) files: Vec<(String, String)>,
    pub(super) prepare: Option<Prepare>,
    pub(super) lay_out: Option<LayOut>,
    pub(super) ending: Ending,
    pub(super) account: Option<Account>,
    socket: Option<String>,
    probe: Option<(&'static [u8], &'static [&'static [u8]])>,
}

impl Program {
    /// A program, looked for on the `PATH` and where Debian keeps servers; the Debian package it
    /// is in, for the error when it is missing; and its arguments for a port and a directory.
    pub fn new(
        binary: &str,
        package: &str,
        args: impl Fn(u16, &Path) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            binary: binary.to_owned(),
            package: package.to_owned(),
            args: Arc::new(args),
            env: Vec::new(),
            files: Vec::new(),
            prepare: None,
            lay_out: None,
            ending: Ending { stop: Signal::TERM, quit: None },
            account: None,
            socket: None,
            probe: None,
        }
    }

    /// What to send, and how answers of a server that is ready begin. Without it, an open port is
    /// answer enough.
    #[must_use]
    pub fn probe(mut self, question: &'static [u8], answers: &'static [&'static [u8]]) -> Self {
        self.probe = Some((question, answers));
        self
    }

    /// Asks the probe through this Unix socket of the data directory, for a server whose port
    /// speaks something the probe does not. `{port}` in it stands for the port's number.
    #[must_use]
    pub fn probe_socket(mut self, name: &str) -> Self {
        self.socket = Some(name.to_owned());
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// A file that is written into the data directory before a start, unless it is there already:
    /// servers keep what they learnt in their own configuration files.
    #[must_use]
    pub fn file(mut self, name: &str, text: impl Into<String>) -> Self {
        self.files.push((name.to_owned(), text.into()));
        self
    }

    /// What is to be done in the data directory before each start, e.g. laying out an empty
    /// database. It sees what an earlier start left there.
    #[must_use]
    pub fn lay_out(
        mut self,
        work: impl Fn(&Path) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        self.lay_out = Some(Arc::new(work));
        self
    }

    /// A program that makes the data directory before the first start, and what is there once it
    /// has been run.
    #[must_use]
    pub fn prepare(
        mut self,
        binary: &str,
        makes: &str,
        args: impl Fn(u16, &Path) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let (binary, makes) = (binary.to_owned(), makes.to_owned());
        self.prepare = Some(Prepare { binary, makes, args: Arc::new(args) });
        self
    }

    /// Runs as this user of the machine when the test runs as root: some servers refuse root.
    pub(super) fn account(mut self, account: Option<Account>) -> Self {
        self.account = account;
        self
    }

    /// Ends by other signals than `TERM` and `KILL`.
    pub(super) fn ending(mut self, stop: Signal, quit: Signal) -> Self {
        self.ending = Ending { stop, quit: Some(quit) };
        self
    }

    pub(super) fn trouble(&self, what: &str) -> Error {
        Error::new(Kind::Store, format!("the test server {} {what}", self.binary))
    }

    pub(super) fn find(&self) -> Result<PathBuf, Error> {
        self.look_for(&self.binary)
    }

    pub(super) fn look_for(&self, binary: &str) -> Result<PathBuf, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Debian keeps servers where the PATH of an ordinary user does not look.
        let besides = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin"].map(Into::into);
        let mut dirs = std::env::split_paths(&path).chain(besides).chain(versioned());
        dirs.find_map(|d| Some(d.join(binary)).filter(|p| p.is_file())).ok_or_else(|| {
            Error::new(Kind::Unsupported, format!("{binary} is not installed")).with_hint(format!(
                "apt-get install {} (`cargo xtask setup` does it)",
                self.package
            ))
        })
    }

    /// Whether a server on this port, with this directory, is ready.
    pub(super) async fn answers(&self, port: u16, dir: &Path) -> bool {
        let ask = async {
            if let Some(socket) = &self.socket {
                self.ask(
                    UnixStream::connect(dir.join(socket.replace("{port}", &port.to_string())))
                        .await
                        .ok()?,
                )
                .await
            } else {
                self.ask(TcpStream::connect(("127.0.0.1", port)).await.ok()?).await
            }
        };
        Clock::system().timeout(Duration::from_secs(1), ask).await.flatten().is_some()
    }

    async fn ask(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Option<()> {
        let Some((question, answers)) = self.probe else { return Some(()) };
        stream.write_all(question).await.ok()?;
        let mut got = Vec::new();
        while stream.read_buf(&mut got).await.ok()? > 0 {
            if answers.iter().any(|a| got.starts_with(a)) {
                return Some(());
            }
        }
        None
    }
}

/// Debian keeps each version of PostgreSQL apart; the latest first.
fn versioned() -> Vec<PathBuf> {
    let found = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut bins: Vec<PathBuf> = found.map(|e| e.path().join("bin")).collect();
    bins.sort();
    bins.reverse();
    bins
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.binary)
    }
}
