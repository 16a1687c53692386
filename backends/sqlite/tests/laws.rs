//! The laws every store must pass, over sqlite.
use distlock_core::Locks;
use distlock_sqlite::{Sqlite, SqliteOptions, Sync, capability};
use distlock_testkit::{Suite, suite};

suite!(
    Suite::files(capability(Sync::Full), |path| {
        let path = path.to_owned();
        Box::pin(async move {
            Sqlite::open(path, SqliteOptions::default()).await.map(Locks::from_store)
        })
    })
    .lose(|site, lock| Box::pin(async move {
        let db = rusqlite::Connection::open(site.url()).expect("the file opens");
        let row = (lock.space.as_str(), lock.name.as_str());
        let gone = db.execute("DELETE FROM locks WHERE space = ?1 AND name = ?2", row);
        assert_eq!(gone.expect("the row goes"), 1);
    }))
);
