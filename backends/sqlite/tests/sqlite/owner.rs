//! Directories that other users can write in, and links that stand where a file should.

use std::fs::{self, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use distlock_core::{Clock, Kind};
use distlock_sqlite::{Sqlite, SqliteOptions};

use crate::kit::{Dir, Named, cycle, open, run};

/// The user `nobody`.
const NOBODY: u32 = 65534;

pub(crate) const TRIALS: &[Named] = &[
    ("a_directory_that_others_can_write_in_is_refused", shared),
    ("another_users_directory_or_database_is_refused", foreign),
    ("a_link_beside_the_database_is_refused", links),
];

async fn refused(path: &Path, part: &str) {
    let e = Sqlite::open(path, SqliteOptions::default()).await.map(drop).expect_err(part);
    assert_eq!(e.kind(), Kind::Refused, "{e:?}");
    assert!(e.to_string().contains(part) && e.hint().is_some(), "{part}: {e:?}");
}

fn shared() {
    run(async {
        let dir = Dir::new();
        for mode in [0o777, 0o1777] {
            set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            refused(&dir.db(), "other users can write").await;
            assert!(!dir.db().exists(), "refused before anything is made");
        }
        let trusting = SqliteOptions { trust_all: true, ..Default::default() };
        cycle(&Sqlite::open(dir.db(), trusting).await.unwrap(), "x").await;
    });
}

fn foreign() {
    run(async {
        let dir = Dir::new();
        cycle(&open(&dir, &Clock::system()).await, "x").await;
        if !rustix::process::geteuid().is_root() {
            // Nothing can be given away; a directory of root's is there, and not writable.
            let e = Sqlite::open("/usr/locks.db", SqliteOptions::default()).await.map(drop);
            return assert_eq!(e.unwrap_err().kind(), Kind::Credentials);
        }
        for theirs in ["locks.db", "locks.db-wal", "locks.db-shm", "locks.db.distlock", ""] {
            let path = dir.path().join(theirs);
            chown(&path, Some(NOBODY), None).unwrap();
            refused(&dir.db(), "another user").await;
            chown(&path, Some(0), None).unwrap();
        }
        cycle(&open(&dir, &Clock::system()).await, "x").await;
    });
}

fn links() {
    run(async {
        for suffix in ["-wal", "-shm", "-journal", ".distlock"] {
            let dir = Dir::new();
            let victim = dir.path().join("victim");
            fs::write(&victim, "precious").unwrap();
            symlink(&victim, format!("{}{suffix}", dir.db().display())).unwrap();
            refused(&dir.db(), "is a link").await;
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        }
    });
}
