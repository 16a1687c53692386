//! The raw store calls that any lock needs: one write to take it, one to give it back.
//!
//! They run where ours run: asked for by an async task, done on a thread that owns the connection.

pub(crate) mod etcd;
mod memcached;
pub(crate) mod redis;
pub(crate) mod sql;
pub(crate) mod zookeeper;

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};

use distlock::backend::engine;
use distlock::{Error, Kind};
use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};
use tokio::sync::oneshot;

/// A thread that does the raw calls of one store.
#[derive(Clone)]
pub(crate) struct Raw(Door);

#[derive(Clone)]
enum Door {
    Memory(Arc<Mutex<Vec<u64>>>),
    Thread(mpsc::Sender<(usize, oneshot::Sender<()>)>),
    Redis(redis::Redis),
    Sql(sql::Sql),
    Etcd(etcd::Etcd),
    ZooKeeper(zookeeper::ZooKeeper),
}

fn fail(e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(Kind::Store, "the raw calls failed").because(e)
}

impl Raw {
    /// A mutex.
    pub(crate) fn memory(names: usize) -> Self {
        Self(Door::Memory(Arc::new(Mutex::new(vec![0; names]))))
    }

    /// Updates of one row.
    pub(crate) fn sqlite(dir: &Path, names: usize, synchronous: &str) -> Result<Self, Error> {
        Ok(Self(Door::Thread(worker(sqlite(dir, names, synchronous)?)?)))
    }

    /// `flock`.
    pub(crate) fn files(dir: &Path, names: usize) -> Result<Self, Error> {
        Ok(Self(Door::Thread(worker(files(dir, names)?)?)))
    }

    /// `add` and `delete`.
    pub(crate) fn memcached(server: SocketAddr, names: usize) -> Result<Self, Error> {
        Ok(Self(Door::Thread(memcached::worker(server, names)?)))
    }

    /// `SET NX PX` and a script.
    pub(crate) fn redis(redis: redis::Redis) -> Self {
        Self(Door::Redis(redis))
    }

    /// Autocommitted updates of one row.
    pub(crate) fn sql(sql: sql::Sql) -> Self {
        Self(Door::Sql(sql))
    }

    /// A put on a lease and a delete.
    pub(crate) fn etcd(etcd: etcd::Etcd) -> Self {
        Self(Door::Etcd(etcd))
    }

    /// Creates and deletes of a node.
    pub(crate) fn zookeeper(zookeeper: zookeeper::ZooKeeper) -> Self {
        Self(Door::ZooKeeper(zookeeper))
    }

    /// Takes and gives back: two calls.
    pub(crate) async fn cycle(&self, name: usize) {
        // The second call needs the first one's answer.
        if let Door::ZooKeeper(zookeeper) = &self.0 {
            return zookeeper.cycle(name).await;
        }
        for take in [true, false] {
            match &self.0 {
                Door::Redis(redis) => redis.call(name, take).await,
                Door::Sql(sql) => sql.update(name).await,
                Door::Etcd(etcd) => {
                    let done = etcd.write(name, take).await;
                    debug_assert!(done.is_ok());
                }
                Door::ZooKeeper(_) => {}
                Door::Memory(rows) => {
                    if let Ok(mut rows) = rows.lock() {
                        rows[name] += 1;
                    }
                }
                Door::Thread(tx) => {
                    let (done, wait) = oneshot::channel();
                    let _ = tx.send((name, done));
                    let _ = wait.await;
                }
            }
        }
    }
}

type Call = Box<dyn FnMut(usize) + Send>;

fn worker(mut call: Call) -> Result<mpsc::Sender<(usize, oneshot::Sender<()>)>, Error> {
    let (tx, rx) = mpsc::channel::<(usize, oneshot::Sender<()>)>();
    engine::thread("raw", move || {
        while let Ok((name, done)) = rx.recv() {
            call(name);
            let _ = done.send(());
        }
    })
    .map_err(fail)?;
    Ok(tx)
}

/// One row a name; a call is an UPDATE in a transaction of its own, at the same settings as ours.
fn sqlite(dir: &Path, names: usize, synchronous: &str) -> Result<Call, Error> {
    let db = Connection::open(dir.join("raw.db")).map_err(fail)?;
    db.execute_batch(&format!(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous};
         CREATE TABLE raw(name INTEGER PRIMARY KEY, owner TEXT, token INTEGER NOT NULL);"
    ))
    .map_err(fail)?;
    for name in 0..names {
        db.execute("INSERT INTO raw VALUES(?1, '', 0)", [i64::try_from(name).unwrap_or(0)])
            .map_err(fail)?;
    }
    Ok(Box::new(move |name| {
        let update = "UPDATE raw SET owner = 'somebody', token = token + 1 WHERE name = ?1";
        let done = db
            .prepare_cached(update)
            .and_then(|mut s| s.execute([i64::try_from(name).unwrap_or(0)]));
        debug_assert!(done.is_ok());
    }))
}

/// One file a name; the first call takes the flock and writes a token, the second unlocks. Nothing
/// is synced: ours syncs one token in ten seconds for all locks, not one a grant.
fn files(dir: &Path, names: usize) -> Result<Call, Error> {
    let mut open = Vec::new();
    for name in 0..names {
        open.push((File::create(dir.join(format!("raw{name}"))).map_err(fail)?, false));
    }
    Ok(Box::new(move |name| {
        let (file, held) = &mut open[name];
        let operation = if *held { FlockOperation::Unlock } else { FlockOperation::LockExclusive };
        let mut done = flock(&*file, operation).map_err(std::io::Error::from);
        if !*held {
            done = done
                .and_then(|()| file.seek(SeekFrom::Start(0)))
                .and_then(|_| file.write_all(b"00000000000000000001"));
        }
        *held = !*held;
        debug_assert!(done.is_ok());
    }))
}
