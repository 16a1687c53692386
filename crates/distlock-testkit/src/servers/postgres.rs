//! How a private PostgreSQL starts.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use distlock_core::{Error, Kind};
use rustix::process::Signal;

use super::account::Account;
use super::{Certs, Program, Server, WallClock};

mod pooler;
mod psql;
mod shared;

/// A start-up message of version 3.0 for the user and database `postgres`.
const HELLO: &[u8] = b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0";
/// A server that is ready asks for credentials, or says that none are needed; one that is still
/// starting sends an error.
const UP: &[&[u8]] = &[b"R"];
const SOCKET: &str = ".s.PGSQL.{port}";
const HBA: &str = "hba.conf";
const DATA: &str = "data";
const PASSWORD: &str = "password";

/// A PostgreSQL to be started, with the superuser `postgres`: quick but not safe from a power cut,
/// and open to everybody on this machine, unless told otherwise.
///
/// On the Unix socket in its directory ([`Server::dir`]) everybody of this machine gets in without
/// a password and without TLS, whatever is asked for on the port, so that a test can look inside.
#[derive(Clone, Debug)]
#[must_use]
pub struct Postgres {
    settings: Vec<[String; 2]>,
    password: Option<String>,
    tls: Option<[String; 2]>,
    env: Vec<(String, std::ffi::OsString)>,
    primary: Option<(PathBuf, u16)>,
}

impl Default for Postgres {
    fn default() -> Self {
        Self::new()
    }
}

impl Postgres {
    /// A PostgreSQL that never waits for a disk.
    pub fn new() -> Self {
        let new = Self { settings: vec![], password: None, tls: None, env: vec![], primary: None };
        new.set("fsync", "off")
            .set("full_page_writes", "off")
            .set("shared_buffers", "16MB")
            .set("max_connections", "200")
            // Files in the data directory: nothing stays in /dev/shm when it is killed.
            .set("dynamic_shared_memory_type", "mmap")
    }

    /// Every commit is on disk before it is answered.
    pub fn durable(self) -> Self {
        self.set("fsync", "on").set("full_page_writes", "on").set("synchronous_commit", "on")
    }

    /// Whoever connects to its port as `postgres` must show this.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Speaks TLS on its port, with these certificates, and nothing else there.
    ///
    /// # Errors
    /// When the certificates cannot be read.
    pub fn tls(mut self, certs: &Certs) -> Result<Self, Error> {
        let read = |path: PathBuf| {
            fs::read_to_string(path)
                .map_err(|e| Error::new(Kind::Store, "no certificates for the test").because(e))
        };
        self.tls = Some([read(certs.server_cert())?, read(certs.server_key())?]);
        Ok(self
            .set("ssl", "on")
            .set("ssl_cert_file", "../tls.crt")
            .set("ssl_key_file", "../tls.key"))
    }

    /// Any setting of `postgresql.conf`. The latest value of a setting counts.
    pub fn set(mut self, setting: &str, value: &str) -> Self {
        self.settings.retain(|[s, _]| s != setting);
        self.settings.push([setting.to_owned(), value.to_owned()]);
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, key: &str, value: impl Into<std::ffi::OsString>) -> Self {
        self.env.push((key.to_owned(), value.into()));
        self
    }

    /// Goes by this wall clock.
    pub fn clock(self, clock: &WallClock) -> Self {
        clock.env().into_iter().fold(self, |postgres, (k, v)| postgres.env(k, v))
    }

    /// Follows this one, which must run, and takes no writes.
    pub fn standby_of(mut self, primary: &Server) -> Self {
        self.primary = Some((primary.dir().to_owned(), primary.addr().port()));
        self
    }

    /// The directory of its Unix socket, as clients name a host.
    #[must_use]
    pub fn socket_dir(server: &Server) -> &Path {
        server.dir()
    }

    fn access(&self) -> String {
        let how = if self.password.is_some() { "scram-sha-256" } else { "trust" };
        let kind = if self.tls.is_some() { "hostssl" } else { "host" };
        let mut hba = "local all all trust\nlocal replication all trust\n".to_owned();
        let _ = writeln!(hba, "{kind} all all 127.0.0.1/32 {how}");
        hba
    }

    /// The program with these options.
    #[must_use]
    pub fn program(self) -> Program {
        let hba = self.access();
        let Self { settings, password, tls, env, primary } = self;
        let args = move |port: u16, dir: &Path| {
            let here = dir.display();
            let mut args = vec!["-D".to_owned(), format!("{here}/{DATA}"), format!("-p{port}")];
            let mut put = |setting: &str, value: &str| {
                args.extend(["-c".to_owned(), format!("{setting}={value}")]);
            };
            put("listen_addresses", "127.0.0.1");
            put("unix_socket_directories", &here.to_string());
            put("hba_file", &format!("{here}/{HBA}"));
            for [setting, value] in &settings {
                put(setting, value);
            }
            args
        };
        let mut program = Program::new("postgres", "postgresql", args)
            .probe(HELLO, UP)
            .probe_socket(SOCKET)
            .account(Account::unless_root_is_fine("postgres"))
            // A TERM would wait until every client has gone.
            .ending(Signal::INT, Signal::QUIT)
            .file(HBA, hba);
        let has_password = password.is_some();
        program = match primary {
            Some((socket, port)) => program.prepare("pg_basebackup", DATA, move |_, dir| {
                let (from, to) =
                    (socket.display().to_string(), dir.join(DATA).display().to_string());
                let port = port.to_string();
                words(&["-R", "-cfast", "-Upostgres", "-h", &from, "-p", &port, "-D", &to])
            }),
            None => program.prepare("initdb", DATA, move |_, dir| {
                let to = dir.join(DATA).display().to_string();
                let pwfile = format!("--pwfile={}", dir.join(PASSWORD).display());
                let mut args =
                    words(&["-Upostgres", "-Atrust", "-EUTF8", "--locale=C", "-N", "-D", &to]);
                args.extend(has_password.then_some(pwfile));
                args
            }),
        };
        if let Some(password) = password {
            program = program.file(PASSWORD, password);
        }
        if let Some([cert, key]) = tls {
            program = program.file("tls.crt", cert).file("tls.key", key);
        }
        env.into_iter().fold(program, |p, (k, v)| p.env(&k, v))
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start(self) -> Result<Server, Error> {
        Server::start(self.program()).await
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

#[cfg(test)]
mod tests;
