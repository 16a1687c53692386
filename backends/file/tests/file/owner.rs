//! Directories that other users can write in, and links that stand where a file should.

use std::fs::{Permissions, read_to_string, set_permissions, write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use distlock_core::session::SessionStore;
use distlock_core::{Error, Kind, Patience};
use distlock_file::{FileOptions, FileStore};
use libtest_mimic::Trial;
use tempfile::tempdir;

use crate::util::*;

/// The user `nobody`.
const NOBODY: u32 = 65534;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_directory_that_others_can_write_in_is_refused", shared),
        trial("another_users_directory_is_refused", foreign),
        trial("a_link_in_the_place_of_a_file_is_not_followed", links),
        trial("a_link_put_into_a_directory_in_use_is_not_followed", late_link),
    ]
}

fn refused(dir: &Path, trust_all: bool) -> Error {
    let options = FileOptions { trust_all, ..FileOptions::default() };
    let e = FileStore::open(dir, options).err().expect("refused");
    assert_eq!(e.kind(), Kind::Refused, "{e:?}");
    assert!(e.hint().is_some(), "{e:?}");
    e
}

fn shared() {
    let dir = tempdir().unwrap();
    let below = dir.path().join("locks");
    for mode in [0o777, 0o1777] {
        set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        assert!(refused(dir.path(), false).to_string().contains("other users can write"));
        assert!(!dir.path().join("layout").exists(), "refused before anything is made");
    }
    // Others cannot replace what is ours in a sticky directory; in any other they can.
    drop(open(&below));
    set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    refused(&below, false);
    let options = FileOptions { trust_all: true, ..FileOptions::default() };
    FileStore::open(&below, options).unwrap();
}

fn foreign() {
    let dir = tempdir().unwrap();
    let theirs = dir.path().join("theirs");
    drop(open(&theirs));
    if rustix::process::geteuid().is_root() {
        // A file of theirs in a directory of ours, then the directory itself.
        chown(theirs.join("fence"), Some(NOBODY), None).unwrap();
        assert!(refused(&theirs, false).to_string().contains("another user"));
        chown(theirs.join("fence"), Some(0), None).unwrap();
        chown(&theirs, Some(NOBODY), None).unwrap();
        assert!(refused(&theirs, false).to_string().contains("another user"));
        assert!(refused(&theirs.join("below"), false).to_string().contains("another user"));
        assert!(!theirs.join("below").exists());
    } else {
        // Nothing can be given away; a directory of root's is there, and not writable.
        let e = FileStore::open("/usr/locks", FileOptions::default()).err().unwrap();
        assert_eq!(e.kind(), Kind::Credentials, "{e:?}");
    }
}

/// A file that nobody may touch, and a link to it.
fn victim(dir: &Path, link: &Path) -> impl Fn() + use<> {
    let victim = dir.join("victim");
    write(&victim, "precious").unwrap();
    symlink(&victim, link).unwrap();
    move || assert_eq!(read_to_string(&victim).unwrap(), "precious")
}

fn links() {
    for name in ["layout", "fence", "fence.new", "sessions", "_"] {
        for trust_all in [false, true] {
            let dir = tempdir().unwrap();
            let locks = dir.path().join("locks");
            std::fs::create_dir(&locks).unwrap();
            let unharmed = victim(dir.path(), &locks.join(name));
            let opened = FileStore::open(&locks, FileOptions { trust_all, ..Default::default() });
            unharmed();
            if !trust_all {
                assert!(refused(&locks, false).to_string().contains("is a link"), "{name}");
            } else if name == "layout" || name == "fence.new" {
                assert_eq!(opened.err().unwrap().kind(), Kind::Refused, "{name}");
            }
            unharmed();
        }
    }
}

fn late_link() {
    let dir = tempdir().unwrap();
    let locks = dir.path().join("locks");
    let store = open(&locks);
    run(async {
        let (conn, _) = lock(&store, "x").await;
        assert_eq!(store.unlock(conn).await.unwrap(), RELEASED);
        let unharmed = victim(dir.path(), &locks.join("_/y.lock"));
        let e = store.lock(&ask("y", Patience::Never), &|_| {}).await.map(drop).unwrap_err();
        assert!(e.kind() == Kind::Refused && e.to_string().contains("is a link"), "{e:?}");
        unharmed();
        // A second name of a file is no better than a link to it.
        std::fs::hard_link(dir.path().join("victim"), locks.join("_/z.lock")).unwrap();
        store.lock(&ask("z", Patience::Never), &|_| {}).await.map(drop).unwrap_err();
        unharmed();
    });
}
