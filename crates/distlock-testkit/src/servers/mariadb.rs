//! How a private MariaDB starts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use distlock_core::{Error, Kind};

use super::{Certs, Program, Server, WallClock};

mod template;

/// The socket's name in the data directory.
const SOCKET: &str = "mariadb.sock";
/// What is run at every start, before the first client gets in.
const INIT: &str = "init.sql";
/// Where the tables are, below the server's directory.
const DATA: &str = "data";

/// A MariaDB server to be started: quick rather than durable, open to root without a password from
/// this machine, with an empty database [`Mariadb::DATABASE`], unless told otherwise.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Mariadb {
    options: Vec<(String, String)>,
    init: Vec<String>,
    env: Vec<(String, OsString)>,
}

impl Mariadb {
    /// The database that is there from the start.
    pub const DATABASE: &'static str = "test";

    /// A quick server: what it answered may be lost when the machine stops, not when it is killed.
    pub fn new() -> Self {
        Self::default()
            .arg("skip-log-bin", "")
            .arg("performance-schema", "OFF")
            .arg("innodb-buffer-pool-size", "32M")
            .arg("innodb-log-file-size", "8M")
            .arg("innodb-flush-log-at-trx-commit", "2")
            .arg("innodb-flush-method", "nosync")
            .arg("innodb-buffer-pool-dump-at-shutdown", "OFF")
            .arg("max-connections", "400")
    }

    /// Every commit is on disk before it is answered, as a server is set up by default.
    pub fn durable(self) -> Self {
        self.arg("innodb-flush-log-at-trx-commit", "1").arg("innodb-flush-method", "O_DIRECT")
    }

    /// Any other option, without its dashes; an empty value for one that takes none. The latest
    /// value of an option counts.
    pub fn arg(mut self, option: &str, value: &str) -> Self {
        self.options.retain(|(o, _)| o != option);
        self.options.push((option.to_owned(), value.to_owned()));
        self
    }

    /// A statement to be run at every start, before anybody gets in; on one line.
    pub fn init(mut self, statement: &str) -> Self {
        self.init.push(statement.to_owned());
        self
    }

    /// A user with a password and these rights on everything, e.g. `SELECT, INSERT` or `ALL`.
    pub fn user(self, name: &str, password: &str, rights: &str) -> Self {
        self.init(&format!("CREATE USER IF NOT EXISTS '{name}'@'%' IDENTIFIED BY '{password}'"))
            .init(&format!("GRANT {rights} ON *.* TO '{name}'@'%'"))
    }

    /// Speaks TLS with these certificates to whoever asks for it.
    pub fn tls(self, certs: &Certs) -> Self {
        let file = |path: PathBuf| path.display().to_string();
        self.arg("ssl-cert", &file(certs.server_cert()))
            .arg("ssl-key", &file(certs.server_key()))
            .arg("ssl-ca", &file(certs.ca()))
    }

    /// Goes by this wall clock.
    pub fn clock(mut self, clock: &WallClock) -> Self {
        self.env.extend(clock.env().map(|(k, v)| (k.to_owned(), v)));
        self
    }

    /// Where a server has its Unix socket.
    #[must_use]
    pub fn socket(server: &Server) -> PathBuf {
        server.dir().join(SOCKET)
    }

    /// The URL of a server's root.
    #[must_use]
    pub fn url(server: &Server) -> String {
        format!("mysql://root@{}/{}", server.addr(), Self::DATABASE)
    }

    /// What a server answers to a statement of its root, rows by lines and columns by tabs; asked
    /// through its socket with its own client program.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses, with what it said.
    pub fn ask(server: &Server, statement: &str) -> Result<String, Error> {
        let trouble = |e| Error::new(Kind::Store, format!("no answer to {statement}")).because(e);
        let said = Command::new("mariadb")
            .args(["--no-defaults", "--user=root", "--batch", "--skip-column-names"])
            .arg(format!("--socket={}", Self::socket(server).display()))
            .arg(format!("--execute={statement}"))
            .arg(Self::DATABASE)
            .output()
            .map_err(trouble)?;
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            return Err(trouble(std::io::Error::other(why)));
        }
        Ok(String::from_utf8_lossy(&said.stdout).trim_end().to_owned())
    }

    /// Makes a store's tables (`schema`) and a user who has just the rights that the store's page
    /// lists for a database `locks`; the user's URL.
    ///
    /// # Errors
    /// As [`Mariadb::ask`].
    ///
    /// # Panics
    /// When the page lists no rights.
    pub fn least_rights(server: &Server, schema: &str, page: &str) -> Result<String, Error> {
        let rights: String = page.lines().filter(|line| line.starts_with("GRANT ")).collect();
        assert!(!rights.is_empty(), "the page lists no rights");
        let rights = rights.replace("locks.", &format!("{}.", Self::DATABASE));
        let user = "CREATE USER 'app'@'%' IDENTIFIED BY 'pw'";
        Self::ask(server, &format!("{schema} {user}; {rights}"))?;
        Ok(format!("mysql://app:pw@{}/{}", server.addr(), Self::DATABASE))
    }

    /// The program with these options.
    #[must_use]
    pub fn program(self) -> Program {
        let Self { options, init, env } = self;
        let args = move |port: u16, dir: &Path| {
            let mut args = vec!["--no-defaults".to_owned()];
            let mut put = |option: &str, value: &str| {
                args.push(match value {
                    "" => format!("--{option}"),
                    value => format!("--{option}={value}"),
                });
            };
            // It refuses to run as root unless told so.
            if rustix::process::geteuid().is_root() {
                put("user", "root");
            }
            put("datadir", &dir.join(DATA).display().to_string());
            put("port", &port.to_string());
            put("bind-address", "127.0.0.1");
            put("socket", &dir.join(SOCKET).display().to_string());
            // One that starts removes the temporary tables of another that shares their place.
            put("tmpdir", &dir.display().to_string());
            put("pid-file", &dir.join("pid").display().to_string());
            put("init-file", &dir.join(INIT).display().to_string());
            for (option, value) in &options {
                put(option, value);
            }
            args
        };
        let first = [
            "SET sql_log_bin = 0".to_owned(),
            format!("CREATE DATABASE IF NOT EXISTS {}", Self::DATABASE),
        ];
        let init: String = first.into_iter().chain(init).map(|line| line + ";\n").collect();
        let mut program =
            Program::new("mariadbd", "mariadb-server", args).file(INIT, init).lay_out(|dir| {
                let data = dir.join(DATA);
                if data.exists() { Ok(()) } else { template::copy(&data) }
            });
        for (key, value) in env {
            program = program.env(&key, value);
        }
        program
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

#[cfg(test)]
mod tests;
