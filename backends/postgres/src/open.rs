//! From a URL to a store that answers.

use std::sync::Arc;

use distlock_core::{Backend, Clock, Error, LeaseDriver, Store, StoreUrl};
use distlock_sql::{ConnectionGroup, ConnectionWorker, Trouble, Versioned};
use sqlx::Row;
use sqlx::postgres::PgConnectOptions;

use crate::cas_store::{self, States};
use crate::options::{Algorithm, PostgresOptions};
use crate::{
    address, capability::capability, connector::Connector, errors::trouble, install,
    listener::NotifyListener, schema::Schema, session_lock::SessionLockKind,
    session_store::Sessions, store::Postgres,
};

/// Max connections for acquires and releases.
const CONNECTIONS: usize = 4;

/// Whether a commit that is answered outlives a power cut: it is on disk (that it is waited for we
/// see to ourselves), and a page that was half written then is made whole.
const DURABLE: &str =
    "SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'";

/// What a URL names.
struct Target {
    to: PgConnectOptions,
    options: PostgresOptions,
    schema: Schema,
    site: String,
}

impl Target {
    fn of(mut url: StoreUrl) -> Result<Self, Error> {
        let options = PostgresOptions::take_from(&mut url)?;
        let to = address::options(&mut url)?;
        url.finish(&["namespace", "require"])?;
        let schema = Schema::new(&options.schema)?;
        Ok(Self { to, options, schema, site: url.to_string() })
    }

    fn told(&self, e: Error) -> Error {
        e.during("connect").store(&self.site)
    }

    /// Whether the tables are there; makes none. On a connection of its own, on which nothing is set: a
    /// pooler's will do.
    async fn exists(&self) -> Result<bool, Error> {
        let connector = Arc::new(Connector::plain(self.to.clone()));
        let worker = ConnectionWorker::new(connector, Clock::system(), self.options.timeout, 1);
        let schema = self.schema.clone();
        let asked = worker.call(distlock_sql::work!(|conn, schema| {
            let there = install::exists(conn, &schema).await.map_err(trouble)?;
            there.map_err(Trouble::answered)
        }));
        asked.await.map_err(|e| self.told(e))
    }

    /// Sees to the tables, unless it is to look only; says whether commits are on disk before they are
    /// answered.
    async fn prepare(&self, worker: &ConnectionWorker<Connector>) -> Result<bool, Error> {
        let (schema, make) = (self.schema.clone(), !self.options.look_only);
        let prepared = worker.call(distlock_sql::work!(|conn, schema| {
            if make {
                let made = install::install(conn, &schema).await.map_err(trouble)?;
                made.map_err(Trouble::answered)?;
            }
            let durable = sqlx::raw_sql(DURABLE).fetch_one(conn).await;
            durable.and_then(|row| row.try_get(0)).map_err(trouble)
        }));
        prepared.await.map_err(|e| self.told(e))
    }
}

/// Connects to the store that a URL names, and makes its tables if there are
/// none.
///
/// # Errors
/// [`Usage`](distlock_core::Kind::Usage) for an invalid URL,
/// [`Refused`](distlock_core::Kind::Refused) for a standby or a pooler in transaction mode,
/// [`Credentials`](distlock_core::Kind::Credentials), [`Layout`](distlock_core::Kind::Layout) for
/// tables of a newer version, and whatever keeps the database from answering.
///
/// # Cancel safety
/// Dropping the future closes what it had opened; tables may have been made.
pub async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    start(Target::of(url)?).await
}

/// The same for a client that only looks: it makes no tables; `None` where there are none.
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// Dropping the future closes what it had opened.
pub async fn open_to_look(url: StoreUrl) -> Result<Option<Arc<dyn Backend>>, Error> {
    let mut target = Target::of(url)?;
    target.options.look_only = true;
    match target.exists().await? {
        true => start(target).await.map(Some),
        false => Ok(None),
    }
}

async fn start(target: Target) -> Result<Arc<dyn Backend>, Error> {
    let (clock, bound) = (Clock::system(), target.options.timeout);
    let to = target.to.clone();
    if target.options.algorithm == Algorithm::Version {
        let connector = Arc::new(Connector::plain(to));
        let front = ConnectionWorker::new(connector, clock, bound, cas_store::CONNECTIONS);
        let promises = capability(&target.options, target.prepare(&front).await?);
        let states = States::new(front, &target.schema);
        return Ok(Arc::new(LeaseDriver::new(Versioned::new(states, target.site, promises)?)));
    }
    let connector = Arc::new(Connector::new(to, bound));
    // Before anything else: what does not arrive at a connection that listens is behind a pooler,
    // where no session is anybody's own, and nothing may be set on one.
    let listener = NotifyListener::open(Arc::clone(&connector), clock.clone(), bound).await;
    let listener = listener.map_err(|e| target.told(e))?;
    let front = ConnectionGroup::new(Arc::clone(&connector), clock, bound, CONNECTIONS);
    let promises = capability(&target.options, target.prepare(front.first()).await?);
    let Target { options, schema, site, .. } = target;
    let lock_kind = match options.algorithm {
        Algorithm::Advisory => SessionLockKind::Advisory,
        Algorithm::RowLock => SessionLockKind::RowLock,
        Algorithm::Queue | Algorithm::Version => {
            let store = Postgres::at(connector, site, promises, &options, &schema, front, listener);
            return Ok(store.await?.into_backend());
        }
    };
    drop(listener); // its work is done: sessions wait in the server's own queue
    let sessions =
        Sessions::at(connector, site, promises, &options, schema, lock_kind, front.into_first());
    Ok(sessions.await?.into_backend())
}
