//! Any server that is a program with a port.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::{Clock, Error};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use super::Program;
use super::offspring;
use super::port::{Port, is_free, is_listened_on_by};

/// How long a server may take until it answers. Seconds as a rule; three Java machines that elect
/// a leader on a busy machine take their time, and only a server that never comes waits it out.
const START: Duration = Duration::from_secs(90);
const BETWEEN: Duration = Duration::from_millis(10);
/// How many ports are tried when each is taken before the server gets to it.
const TRIES: u32 = 10;

/// A running server. Dropping it kills the process and removes its data.
pub struct Server {
    program: Program,
    port: Port,
    dir: TempDir,
    process: Mutex<Option<Child>>,
}

impl Server {
    /// Starts a private copy and waits until it answers.
    ///
    /// # Errors
    /// [`Kind::Unsupported`](distlock_core::Kind::Unsupported) when the program is not installed, with a hint that names the
    /// package; [`Kind::Store`](distlock_core::Kind::Store) when it does not come up, with what it said.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start(program: Program) -> Result<Self, Error> {
        let mut tries = 0;
        loop {
            let dir = tempfile::Builder::new().prefix("distlock-server-").tempdir();
            let dir = dir.map_err(|e| program.trouble("has no directory").because(e))?;
            let port = Port::claim().map_err(|e| program.trouble("has no port").because(e))?;
            let server = Self { program: program.clone(), port, dir, process: Mutex::new(None) };
            let Err(e) = server.again().await else { return Ok(server) };
            // Claims keep tests apart; only somebody who knows nothing of them gets in between.
            tries += 1;
            if tries == TRIES || is_free(server.port.number()) {
                return Err(e);
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
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
            self.prepare().await?;
            let child = self.spawn()?;
            *self.process() = Some(child);
        }
        let clock = Clock::system();
        let end = clock.now().plus(START);
        while !self.answers().await {
            let ended = self.process().as_mut().and_then(|p| p.try_wait().ok().flatten());
            if ended.is_some() || clock.now() >= end {
                self.kill();
                let last = self.last_lines(5, |_| true);
                return Err(self
                    .program
                    .trouble("did not come up")
                    .with_hint(format!("its last lines, latest first: {last}")));
            }
            clock.sleep(BETWEEN).await;
        }
        Ok(())
    }

    fn log(&self) -> std::path::PathBuf {
        self.dir.path().join("server.log")
    }

    /// The last lines of its log, latest first, of those that match.
    fn last_lines(&self, count: usize, matches: impl Fn(&str) -> bool) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let last = log.lines().rev().filter(|line| matches(line)).take(count);
        last.collect::<Vec<_>>().join(" | ")
    }

    /// Exit status and log of a server that ended by itself; `None` while it runs, and for one that
    /// was stopped or killed by its owner.
    #[must_use]
    pub fn crash(&self) -> Option<String> {
        let status = self.process().as_mut()?.try_wait().ok()??;
        // A crash report may end with pages that name no cause.
        let names_a_cause = |line: &str| {
            ["ERROR", "FATAL", "PANIC", "ssertion"].iter().any(|word| line.contains(word))
        };
        let (causes, last) = (self.last_lines(8, names_a_cause), self.last_lines(5, |_| true));
        Some(format!("{status}; its errors, latest first: {causes}; its last lines: {last}"))
    }

    /// Writes the files a start needs, and makes the data directory before the first one.
    async fn prepare(&self) -> Result<(), Error> {
        let fault = |e: io::Error| self.program.trouble("cannot be prepared").because(e);
        for (name, text) in &self.program.files {
            let path = self.dir.path().join(name);
            if path.exists() {
                continue;
            }
            // Some servers refuse a key that others may read.
            let file = File::options().create_new(true).write(true).mode(0o600).open(path);
            file.and_then(|mut f| f.write_all(text.as_bytes())).map_err(fault)?;
        }
        if let Some(account) = self.program.account {
            account.own(self.dir.path()).map_err(fault)?;
        }
        let Some(prepare) = &self.program.prepare else { return Ok(()) };
        if self.dir.path().join(&prepare.makes).exists() {
            return Ok(());
        }
        let mut command = self.command(&self.program.look_for(&prepare.binary)?);
        command.args((prepare.args)(self.port.number(), self.dir.path()));
        let run = tokio::process::Command::from(command).kill_on_drop(true).output().await;
        let run = run.map_err(fault)?;
        if run.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        Err(fault(io::Error::other(format!("{} said: {}", prepare.binary, said.trim()))))
    }

    /// A program as the server's user, in its directory.
    fn command(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        if let Some(account) = self.program.account {
            account.run(&mut command, self.dir.path());
        }
        command
    }

    fn spawn(&self) -> Result<Child, Error> {
        let binary = self.program.find()?;
        let fault = |e: io::Error| self.program.trouble("does not start").because(e);
        if let Some(lay_out) = &self.program.lay_out {
            lay_out(self.dir.path())?;
        }
        let log = File::options().create(true).append(true).open(self.log()).map_err(fault)?;
        self.command(&binary)
            .args((self.program.args)(self.port.number(), self.dir.path()))
            .envs(self.program.env.iter().map(|(k, v)| (k, v)))
            .stdout(log.try_clone().map_err(fault)?)
            .stderr(log)
            .spawn()
            .map_err(fault)
    }

    /// Whether it is ready, and it is this one that says so.
    async fn answers(&self) -> bool {
        let Some(pid) = self.process().as_ref().map(Child::id) else { return false };
        is_listened_on_by(self.port.number(), pid)
            && self.program.answers(self.port.number(), self.dir.path()).await
    }

    /// Whether its process is there; one that is paused is.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process().as_mut().is_some_and(|p| matches!(p.try_wait(), Ok(None)))
    }

    /// `None` once it has ended: its number may be another process's by then.
    pub(super) fn pid(&self) -> Option<Pid> {
        let mut process = self.process();
        let child = process.as_mut()?;
        let runs = matches!(child.try_wait(), Ok(None));
        Pid::from_raw(i32::try_from(child.id()).ok()?).filter(|_| runs)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, signal);
        }
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(&self) {
        self.signal(self.program.ending.stop);
        self.resume(); // one that is paused would hear of it only then
        if let Some(mut child) = self.process().take() {
            let _ = child.wait();
        }
    }

    /// Kills it at once, and what it forked, as a power cut would end them.
    pub fn kill(&self) {
        self.pause();
        if let Some(pid) = self.pid() {
            offspring::kill(pid);
        }
        if let Some(mut child) = self.process().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it at once, but so that it takes along what outlives a killed process: PostgreSQL's
    /// shared memory does.
    fn quit(&self) {
        let Some((quit, pid)) = self.program.ending.quit.zip(self.pid()) else { return };
        self.signal(quit);
        self.resume();
        offspring::wait(pid);
    }

    /// Stops it in its tracks, and what it forked: connections stay open and nothing answers.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        if let Some(pid) = self.pid() {
            // A signal is on its way only; what a test does next is to meet a server that stands.
            let state = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let _ = waitid(WaitId::Pid(pid), state);
            offspring::signal(pid, Signal::STOP);
        }
    }

    /// Ends [`Server::pause`].
    pub fn resume(&self) {
        if let Some(pid) = self.pid() {
            offspring::signal(pid, Signal::CONT);
        }
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
        self.quit(); // without its data the next start could not take away what a kill leaves
        self.kill();
        let fault = |e: io::Error| self.program.trouble("has data that stays").because(e);
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
    /// It may have ended.
    pub async fn restart(&self) -> Result<(), Error> {
        self.signal(self.program.ending.stop);
        self.resume();
        // Without blocking the thread: a server that ends may wait for bytes that a proxy of this
        // runtime carries. PostgreSQL waits a minute for a client that has not logged in yet.
        while self.is_running() {
            Clock::system().sleep(BETWEEN).await;
        }
        self.stop();
        self.again().await
    }
}

impl Drop for Server {
    /// Takes effect at once: the process is killed and reaped, then its data is removed.
    fn drop(&mut self) {
        self.quit();
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use distlock_core::{Kind, engine};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::wait::until;

    /// A server of a few lines: answers every connection with how often it was started, which it
    /// keeps in its data directory.
    fn counting() -> Program {
        Program::new("perl", "perl-base", count_starts).probe(b"?\n", &[b"up "])
    }

    fn count_starts(port: u16, dir: &Path) -> Vec<String> {
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
    }

    async fn starts(server: &Server) -> Option<String> {
        let mut stream = TcpStream::connect(server.addr()).await.ok()?;
        stream.write_all(b"?\n").await.ok()?;
        let mut text = String::new();
        let read = stream.read_to_string(&mut text);
        Clock::system().timeout(Duration::from_millis(300), read).await?.ok()?;
        Some(text.trim().to_owned())
    }

    /// It answers, and was started so often.
    async fn is_up(server: &Server, times: u32) {
        let mut said = None;
        until("it answers", async || {
            said = starts(server).await;
            said.is_some()
        })
        .await;
        assert_eq!(said, Some(format!("up {times}")));
    }

    #[tokio::test]
    async fn a_server_starts_pauses_dies_forgets_and_cleans_up() {
        let server = Server::start(counting()).await.unwrap();
        is_up(&server, 1).await;
        server.pause();
        assert_eq!(starts(&server).await, None);
        server.resume();
        until("it goes on", async || starts(&server).await.is_some()).await;
        server.kill();
        assert_eq!(starts(&server).await, None);
        server.again().await.unwrap();
        is_up(&server, 2).await;
        server.restart().await.unwrap();
        is_up(&server, 3).await;
        server.wipe().await.unwrap();
        is_up(&server, 1).await;
        let (dir, addr) = (server.dir().to_owned(), server.addr());
        drop(server);
        assert!(!dir.exists() && TcpStream::connect(addr).await.is_err());
    }

    #[tokio::test]
    async fn what_is_missing_is_an_error_that_names_the_package() {
        let program = Program::new("no-such-server", "some-package", count_starts);
        let e = Server::start(program).await.err().expect("no server");
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(e.hint().is_some_and(|h| h.contains("apt-get install some-package")), "{e:?}");
    }

    #[tokio::test]
    async fn one_that_does_not_come_up_says_why() {
        let program =
            Program::new("perl", "perl-base", |_, _| vec!["-e".into(), "die 'no luck'".into()]);
        let e = Server::start(program).await.err().expect("no server");
        assert!(e.hint().is_some_and(|h| h.contains("no luck")), "{e:?}");
    }

    /// One that ends only when a client that stays connected has said so.
    fn patient() -> Program {
        let args = |port: u16, _: &Path| {
            let code = format!(
                "use IO::Socket::INET; my $stays; $SIG{{TERM}}=sub {{ <$stays> if $stays; exit }}; \
                 my $s=IO::Socket::INET->new(LocalAddr=>'127.0.0.1',LocalPort=>{port},\
                 Listen=>5,ReuseAddr=>1) or die \"$!\"; \
                 while (1) {{ my $c=$s->accept or next; my $said=<$c>; syswrite $c, \"up\\n\"; \
                 $stays=$c if $said eq \"stay\\n\" }}"
            );
            vec!["-e".to_owned(), code]
        };
        Program::new("perl", "perl-base", args).probe(b"?\n", &[b"up"])
    }

    #[tokio::test]
    async fn a_restart_lets_other_tasks_of_its_thread_run() {
        let server = Server::start(patient()).await.unwrap();
        let mut client = TcpStream::connect(server.addr()).await.unwrap();
        client.write_all(b"stay\n").await.unwrap();
        client.read_exact(&mut [0; 3]).await.unwrap();
        let client = crate::wait::task(async move {
            Clock::system().sleep(Duration::from_millis(200)).await;
            client.write_all(b"go\n").await.unwrap();
            let _ = client.read(&mut [0; 8]).await;
        });
        crate::wait::soon("the restart", server.restart()).await.unwrap();
        client.await.unwrap();
    }

    #[tokio::test]
    async fn only_one_that_ended_by_itself_has_crashed() {
        let server = Server::start(counting()).await.unwrap();
        assert_eq!(server.crash(), None);
        // As if by its own hand.
        server.signal(Signal::ABORT);
        until("it has ended", async || !server.is_running()).await;
        assert!(server.crash().is_some_and(|how| how.contains("signal: 6")));
        server.kill();
        assert_eq!(server.crash(), None);
    }

    #[tokio::test]
    async fn a_port_that_a_stranger_took_meanwhile_is_left_to_it() {
        let taken = Arc::<Mutex<Vec<u16>>>::default();
        let seen = taken.clone();
        let program = Program::new("perl", "perl-base", move |port, dir| {
            let mut seen = seen.lock().unwrap();
            if seen.len() < 2 {
                // The stranger even answers as the server would.
                let stranger = TcpListener::bind(("127.0.0.1", port)).unwrap();
                engine::thread("stranger", move || {
                    for client in stranger.incoming() {
                        let mut client = client.unwrap();
                        let _ = client.read(&mut [0; 8]);
                        let _ = client.write_all(b"up 99\n");
                    }
                })
                .unwrap();
            }
            seen.push(port);
            count_starts(port, dir)
        });
        let server = Server::start(program.probe(b"?\n", &[b"up "])).await.unwrap();
        is_up(&server, 1).await;
        let taken = taken.lock().unwrap();
        assert_eq!(taken.len(), 3);
        assert_eq!(server.addr().port(), taken[2]);
    }

    #[tokio::test]
    async fn one_that_is_paused_can_be_stopped_and_dropped() {
        let server = Server::start(counting()).await.unwrap();
        server.pause();
        server.stop();
        server.again().await.unwrap();
        server.pause();
        let addr = server.addr();
        drop(server);
        assert!(TcpStream::connect(addr).await.is_err());
    }

    #[tokio::test]
    async fn a_panic_takes_its_servers_along() {
        let server = Server::start(counting()).await.unwrap();
        let (dir, addr) = (server.dir().to_owned(), server.addr());
        let end = crate::wait::task(async move {
            let _server = server;
            panic!("as a failing test does");
        });
        assert!(end.await.is_err());
        assert!(!dir.exists() && TcpStream::connect(addr).await.is_err());
    }
}
