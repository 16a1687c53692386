//! Asking a test's PostgreSQL without a driver.

use std::process::Stdio;

use distlock_core::{Error, Kind};

use super::{Postgres, Server};

impl Postgres {
    /// Runs statements as the superuser through the Unix socket, and gives what they print: a line
    /// for each row, `|` between columns.
    ///
    /// # Errors
    /// When a statement fails, with what the server said.
    ///
    /// # Cancel safety
    /// The statements may have been run.
    pub async fn sql(server: &Server, statements: &str) -> Result<String, Error> {
        let psql = Self::new().program().look_for("psql")?;
        let trouble = || Error::new(Kind::Store, "psql failed");
        let run = tokio::process::Command::new(psql)
            .args(["-XqtA", "-vON_ERROR_STOP=1", "-Upostgres", "-dpostgres"])
            .arg(format!("-h{}", server.dir().display()))
            .arg(format!("-p{}", server.addr().port()))
            .args(["-c", statements])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|e| trouble().because(e))?;
        if run.status.success() {
            return Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned());
        }
        Err(trouble().with_hint(String::from_utf8_lossy(&run.stderr).trim().to_owned()))
    }
}
