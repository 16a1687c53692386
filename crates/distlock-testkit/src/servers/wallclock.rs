//! Moving a server's wall clock while it runs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock_core::{Error, Kind};
use tempfile::TempDir;

/// Written here and compiled when a test asks for it, so that no test carries a binary along.
const SHIM: &str = include_str!("wallshift.c");

/// The wall clock of the servers that were started with it; it begins at the true time. Several
/// servers may share one. Keep it for as long as they run or start again.
#[derive(Debug)]
pub struct WallClock {
    dir: TempDir,
    file: File,
    nanos: Mutex<i64>,
}

impl WallClock {
    /// Builds what moves a clock.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when the machine has no C compiler.
    pub fn new() -> Result<Self, Error> {
        let trouble = |e| Error::new(Kind::Store, "no wall clock to move").because(e);
        let dir = tempfile::Builder::new().prefix("distlock-clock-").tempdir().map_err(trouble)?;
        // A server may run as another user than the test.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).map_err(trouble)?;
        let source = dir.path().join("wallshift.c");
        fs::write(&source, SHIM).map_err(trouble)?;
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(dir.path().join("wallshift.so"))
            .arg(&source)
            .output();
        let hint = "apt-get install gcc: the clock of a server is moved by a few lines of C";
        let missing = || Error::new(Kind::Unsupported, "no C compiler").with_hint(hint);
        let built = built.map_err(|e| missing().because(e))?;
        if !built.status.success() {
            return Err(missing().because(std::io::Error::other(
                String::from_utf8_lossy(&built.stderr).into_owned(),
            )));
        }
        let path = dir.path().join("shift");
        let file = File::options().create_new(true).write(true).open(path).map_err(trouble)?;
        file.write_all_at(&0_i64.to_ne_bytes(), 0).map_err(trouble)?;
        Ok(Self { dir, file, nanos: Mutex::new(0) })
    }

    /// The variables that put a program under this clock.
    #[must_use]
    pub fn env(&self) -> [(&'static str, OsString); 2] {
        [
            ("LD_PRELOAD", self.dir.path().join("wallshift.so").into()),
            ("DISTLOCK_WALLSHIFT", self.dir.path().join("shift").into()),
        ]
    }

    /// Moves it forward, at once and on top of what it was moved before.
    ///
    /// # Panics
    /// When the file that holds the shift cannot be written.
    pub fn forward(&self, d: Duration) {
        self.shift(nanos(d));
    }

    /// Moves it back, at once and on top of what it was moved before.
    ///
    /// # Panics
    /// When the file that holds the shift cannot be written.
    pub fn back(&self, d: Duration) {
        self.shift(-nanos(d));
    }

    /// Moves it by so many nanoseconds, either way, on top of what it was moved before.
    ///
    /// # Panics
    /// When the file that holds the shift cannot be written.
    pub fn shift(&self, by: i64) {
        let mut nanos = self.nanos.lock().unwrap_or_else(PoisonError::into_inner);
        *nanos = nanos.saturating_add(by);
        self.file.write_all_at(&nanos.to_ne_bytes(), 0).expect("a file of our own");
    }

    /// How far it is from the true time, in nanoseconds.
    #[must_use]
    pub fn shifted(&self) -> i64 {
        *self.nanos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use distlock_core::Clock;

    use super::super::{Redis, raw};
    use super::*;

    /// How many seconds a redis is ahead of this process, rounded.
    async fn ahead(addr: SocketAddr) -> i64 {
        let now = || i64::try_from(Clock::system().wall_micros()).unwrap();
        let (asked, time) = loop {
            let asked = now();
            let time = raw(addr, &["TIME"]).await.unwrap();
            // An answer that took long says little.
            if now() - asked <= 400_000 {
                break (asked, time);
            }
        };
        let [sec, micros] = time.list() else { panic!("{time}") };
        let there = sec.int().unwrap() * 1_000_000 + micros.int().unwrap();
        (there - asked + 500_000).div_euclid(1_000_000)
    }

    #[tokio::test]
    async fn a_redis_goes_by_the_wall_clock_it_is_given() {
        let clock = WallClock::new().unwrap();
        let moved = Redis::new().clock(&clock).start().await.unwrap();
        let other = Redis::new().start().await.unwrap();
        assert_eq!(ahead(moved.addr()).await, 0);
        clock.forward(Duration::from_secs(3600));
        assert_eq!(ahead(moved.addr()).await, 3600);
        let set = raw(moved.addr(), &["SET", "k", "v", "PX", "60000"]).await.unwrap();
        assert!(!set.is_error(), "{set}");
        clock.back(Duration::from_secs(7200));
        assert_eq!(ahead(moved.addr()).await, -3600);
        let left = raw(moved.addr(), &["PTTL", "k"]).await.unwrap().int().unwrap();
        assert!(left > 7_200_000, "a redis expires keys by its wall clock, and this went back");
        moved.restart().await.unwrap();
        assert_eq!((ahead(moved.addr()).await, ahead(other.addr()).await), (-3600, 0));
        assert_eq!(clock.shifted(), -3_600_000_000_000);
    }
}
