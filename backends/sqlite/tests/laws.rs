//! The laws every store must pass, over sqlite.
use distlock_sqlite::{Sqlite, SqliteOptions, Sync, capability};
use distlock_testkit::{Suite, leased, suite};

suite!(Suite::files(capability(Sync::Full), |path| {
    let path = path.to_owned();
    Box::pin(async move { Sqlite::open(path, SqliteOptions::new()).await.map(leased) })
}));
