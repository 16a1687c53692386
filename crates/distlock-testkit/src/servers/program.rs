//! How to start a server and how to know that it answers.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use distlock_core::{Clock, Error, Kind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

type Args = Arc<dyn Fn(u16, &Path) -> Vec<String> + Send + Sync>;
type Prepare = Arc<dyn Fn(&Path) -> Result<(), Error> + Send + Sync>;

/// A server program, not yet started.
#[derive(Clone)]
pub struct Program {
    pub(super) binary: String,
    pub(super) package: String,
    pub(super) args: Args,
    pub(super) env: Vec<(String, OsString)>,
    pub(super) files: Vec<(String, String)>,
    pub(super) prepare: Option<Prepare>,
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
    /// speaks something the probe does not.
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
    pub fn prepare(
        mut self,
        work: impl Fn(&Path) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        self.prepare = Some(Arc::new(work));
        self
    }

    pub(super) fn trouble(&self, what: &str) -> Error {
        Error::new(Kind::Store, format!("the test server {} {what}", self.binary))
    }

    pub(super) fn find(&self) -> Result<PathBuf, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Debian keeps servers where the PATH of an ordinary user does not look.
        let besides = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin"].map(Into::into);
        let mut dirs = std::env::split_paths(&path).chain(besides);
        dirs.find_map(|d| Some(d.join(&self.binary)).filter(|p| p.is_file())).ok_or_else(|| {
            Error::new(Kind::Unsupported, format!("{} is not installed", self.binary)).with_hint(
                format!("apt-get install {} (`cargo xtask setup` does it)", self.package),
            )
        })
    }

    /// Whether a server on this port, with this directory, is ready.
    pub(super) async fn answers(&self, port: u16, dir: &Path) -> bool {
        let ask = async {
            if let Some(socket) = &self.socket {
                self.ask(UnixStream::connect(dir.join(socket)).await.ok()?).await
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

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.binary)
    }
}
