//! Any server that is a program with a port.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::{Clock, Error, Kind};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(20);
const BETWEEN: Duration = Duration::from_millis(10);

/// How to start a server and how to know that it answers.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The program, looked for on the `PATH` and where Debian keeps servers.
    pub binary: &'static str,
    /// The Debian package it is in, for the error when it is missing.
    pub package: &'static str,
    /// Its arguments for a port and a data directory.
    pub args: fn(u16, &Path) -> Vec<String>,
    /// What to send and how the answer begins; without it, an open port is answer enough.
    pub probe: Option<(&'static [u8], &'static [u8])>,
}

/// A running server. Dropping it kills the process and removes its data.
pub struct Server {
    program: Program,
    port: u16,
    dir: TempDir,
    process: Mutex<Option<Child>>,
}

impl Server {
    /// Starts a private copy and waits until it answers.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when the program is not installed, with a hint that names the
    /// package; [`Kind::Store`] when it does not come up, with what it said.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start(program: Program) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("distlock-server-").tempdir();
        let dir = dir.map_err(|e| trouble(&program, "has no directory").because(e))?;
        let port = free_port().await.map_err(|e| trouble(&program, "has no port").because(e))?;
        let server = Self { program, port, dir, process: Mutex::new(None) };
        server.again().await?;
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Its data directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it again on the same port with the data it left, and waits until it answers.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// The process goes on; call it again to wait.
    pub async fn again(&self) -> Result<(), Error> {
        if self.process().is_none() {
            let child = self.spawn()?;
            *self.process() = Some(child);
        }
        let clock = Clock::system();
        let end = clock.now().plus(START);
        while !self.answers().await {
            let ended = self.process().as_mut().and_then(|p| p.try_wait().ok().flatten());
            if ended.is_some() || clock.now() >= end {
                self.kill();
                let said = fs::read_to_string(self.log()).unwrap_or_default();
                let last = said.lines().rev().take(5).collect::<Vec<_>>().join(" | ");
                return Err(trouble(&self.program, "did not come up")
                    .with_hint(format!("its last lines, latest first: {last}")));
            }
            clock.sleep(BETWEEN).await;
        }
        Ok(())
    }

    fn log(&self) -> std::path::PathBuf {
        self.dir.path().join("server.log")
    }

    fn spawn(&self) -> Result<Child, Error> {
        let binary = find(self.program.binary).ok_or_else(|| missing(&self.program))?;
        let fault = |e: io::Error| trouble(&self.program, "does not start").because(e);
        let log = File::options().create(true).append(true).open(self.log()).map_err(fault)?;
        Command::new(binary)
            .args((self.program.args)(self.port, self.dir.path()))
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(fault)?)
            .stderr(log)
            .spawn()
            .map_err(fault)
    }

    async fn answers(&self) -> bool {
        let ask = async {
            let mut stream = TcpStream::connect(self.addr()).await.ok()?;
            let Some((question, answer)) = self.program.probe else { return Some(()) };
            stream.write_all(question).await.ok()?;
            let mut got = vec![0; answer.len()];
            stream.read_exact(&mut got).await.ok()?;
            (got == answer).then_some(())
        };
        Clock::system().timeout(Duration::from_secs(1), ask).await.flatten().is_some()
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &*self.process()
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(&self) {
        self.signal(Signal::TERM);
        if let Some(mut child) = self.process().take() {
            let _ = child.wait();
        }
    }

    /// Kills it at once, as a power cut would end it.
    pub fn kill(&self) {
        if let Some(mut child) = self.process().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it in its tracks: connections stay open and nothing answers.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Ends [`Server::pause`].
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it, removes its data, and starts it again.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// As [`Server::again`].
    pub async fn wipe(&self) -> Result<(), Error> {
        self.kill();
        let fault = |e: io::Error| trouble(&self.program, "has data that stays").because(e);
        for entry in fs::read_dir(self.dir.path()).map_err(fault)? {
            let path = entry.map_err(fault)?.path();
            let removed =
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            removed.map_err(fault)?;
        }
        self.again().await
    }

    /// Asks it to end and starts it again with its data.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// As [`Server::again`].
    pub async fn restart(&self) -> Result<(), Error> {
        self.stop();
        self.again().await
    }
}

impl Drop for Server {
    /// Takes effect at once: the process is killed and reaped, then its data is removed.
    fn drop(&mut self) {
        self.kill();
    }
}

fn trouble(program: &Program, what: &str) -> Error {
    Error::new(Kind::Store, format!("the test server {} {what}", program.binary))
}

fn missing(program: &Program) -> Error {
    Error::new(Kind::Unsupported, format!("{} is not installed", program.binary))
        .with_hint(format!("apt-get install {} (`cargo xtask setup` does it)", program.package))
}

fn find(binary: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps servers where the PATH of an ordinary user does not look.
    let besides = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin"].map(Into::into);
    std::env::split_paths(&path).chain(besides).map(|d| d.join(binary)).find(|p| p.is_file())
}

async fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::until;

    /// A server of a few lines: answers every connection with how often it was started, which it
    /// keeps in its data directory.
    fn counting() -> Program {
        Program {
            binary: "perl",
            package: "perl-base",
            args: |port, dir| {
                let code = format!(
                    "use IO::Socket::INET; my $f='{}/starts'; my $n=0; \
                     if (open(F,'<',$f)) {{ $n=<F>; close F }} \
                     $n++; open(F,'>',$f); print F $n; close F; \
                     my $s=IO::Socket::INET->new(LocalAddr=>'127.0.0.1',LocalPort=>{port},\
                     Listen=>5,ReuseAddr=>1) or die \"$!\"; \
                     while (my $c=$s->accept) {{ <$c>; print $c \"up $n\\n\"; close $c }}",
                    dir.display()
                );
                vec!["-e".to_owned(), code]
            },
            probe: Some((b"?\n", b"up ")),
        }
    }

    async fn starts(server: &Server) -> Option<String> {
        let mut stream = TcpStream::connect(server.addr()).await.ok()?;
        stream.write_all(b"?\n").await.ok()?;
        let mut text = String::new();
        let read = stream.read_to_string(&mut text);
        Clock::system().timeout(Duration::from_millis(300), read).await?.ok()?;
        Some(text.trim().to_owned())
    }

    #[tokio::test]
    async fn a_server_starts_pauses_dies_forgets_and_cleans_up() {
        let server = Server::start(counting()).await.unwrap();
        assert_eq!(starts(&server).await.as_deref(), Some("up 1"));
        server.pause();
        assert_eq!(starts(&server).await, None);
        server.resume();
        until("it goes on", async || starts(&server).await.is_some()).await;
        server.kill();
        assert_eq!(starts(&server).await, None);
        server.again().await.unwrap();
        assert_eq!(starts(&server).await.as_deref(), Some("up 2"));
        server.restart().await.unwrap();
        assert_eq!(starts(&server).await.as_deref(), Some("up 3"));
        server.wipe().await.unwrap();
        assert_eq!(starts(&server).await.as_deref(), Some("up 1"));
        let (dir, addr) = (server.dir().to_owned(), server.addr());
        drop(server);
        assert!(!dir.exists() && TcpStream::connect(addr).await.is_err());
    }

    #[tokio::test]
    async fn what_is_missing_is_an_error_that_names_the_package() {
        let program = Program { binary: "no-such-server", package: "some-package", ..counting() };
        let e = Server::start(program).await.err().expect("no server");
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(e.hint().is_some_and(|h| h.contains("apt-get install some-package")), "{e:?}");
    }

    #[tokio::test]
    async fn one_that_does_not_come_up_says_why() {
        let program =
            Program { args: |_, _| vec!["-e".into(), "die 'no luck'".into()], ..counting() };
        let e = Server::start(program).await.err().expect("no server");
        assert!(e.hint().is_some_and(|h| h.contains("no luck")), "{e:?}");
    }
}
