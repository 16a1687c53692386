//! From a URL to a store that answers.

use std::sync::Arc;

use distlock_core::leased::Leased;
use distlock_core::seam::Backend;
use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Error, Kind, Store};
use distlock_sql::{Lane, Trouble, Versioned};
use sqlx::Row;

use crate::address;
use crate::door::Door;
use crate::ear::Ear;
use crate::grip::Grip;
use crate::install;
use crate::options::{Algorithm, PostgresOptions};
use crate::promises::capability;
use crate::quiet::Quiet;
use crate::sessions::Sessions;
use crate::statements::{Schema, Statements};
use crate::store::Postgres;
use crate::trouble::trouble;
use crate::version::{self, States};

/// The schemes of the PostgreSQL stores.
pub const SCHEMES: [&str; 2] = ["postgres", "postgresql"];

/// Whether a commit that is answered outlives a power cut: it is on disk (that it is waited for we
/// see to ourselves), and a page that was half written then is made whole.
const DURABLE: &str =
    "SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'";

/// Connects to the store that a URL of one of [`SCHEMES`] names, and makes its tables if there are
/// none.
///
/// # Errors
/// [`Usage`](distlock_core::Kind::Usage) for a URL that cannot be,
/// [`Refused`](distlock_core::Kind::Refused) for a standby or a pooler in transaction mode,
/// [`Credentials`](distlock_core::Kind::Credentials), [`Layout`](distlock_core::Kind::Layout) for
/// tables of a newer version, and whatever keeps the database from answering.
///
/// # Cancel safety
/// Dropping the future closes what it had opened; tables may have been made.
pub async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    let none = || Error::new(Kind::Layout, "the tables are not there");
    start(url, false).await?.ok_or_else(none)
}

/// The same for a client that only looks: it makes no tables; `None` where there are none.
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// Dropping the future closes what it had opened.
pub async fn open_to_look(url: StoreUrl) -> Result<Option<Arc<dyn Backend>>, Error> {
    start(url, true).await
}

async fn start(mut url: StoreUrl, look_only: bool) -> Result<Option<Arc<dyn Backend>>, Error> {
    let options = PostgresOptions { look_only, ..PostgresOptions::take_from(&mut url)? };
    let to = address::options(&mut url)?;
    let known = [&PostgresOptions::KEYS[..], &address::KEYS, &["namespace", "require"]].concat();
    url.finish(&known)?;
    let site = url.to_string();
    let schema = Schema::new(&options.schema)?;
    let (clock, bound) = (Clock::system(), options.timeout);
    let told = |e: Error| e.during("connect").store(&site);
    if options.algorithm == Algorithm::Version {
        let front = Lane::new(Arc::new(Door::plain(to)), clock, bound, version::CONNECTIONS);
        let Some(durable) = prepare(&front, &schema, look_only).await.map_err(told)? else {
            return Ok(None);
        };
        let states = States::new(front, site, capability(&options, durable), &schema);
        return Ok(Some(Arc::new(Leased::new(Versioned::new(states)?))));
    }
    let door = Arc::new(Door::new(to, bound));
    let quiet = Arc::new(Quiet::new(clock.clone()));
    // Before anything else: what does not arrive at a connection that listens is behind a pooler,
    // where no session is anybody's own, and nothing may be set on one.
    let ear = Ear::open(Arc::clone(&door), clock.clone(), bound, Arc::clone(&quiet))
        .await
        .map_err(told)?;
    let front = Lane::new(Arc::clone(&door), clock, bound, 1);
    let Some(durable) = prepare(&front, &schema, look_only).await.map_err(told)? else {
        return Ok(None);
    };
    let promises = capability(&options, durable);
    let grip = match options.algorithm {
        Algorithm::Advisory => Grip::Advisory,
        Algorithm::RowLock => Grip::RowLock,
        Algorithm::Queue | Algorithm::Version => {
            let say = Statements::new(&schema);
            let store = Postgres::at(door, site, promises, &options, say, front, (ear, quiet));
            return Ok(Some(store.await?.into_backend()));
        }
    };
    drop(ear); // its work is done: sessions wait in the server's own line
    let sessions = Sessions::at(door, site, promises, &options, schema, grip, front);
    Ok(Some(sessions.await?.into_backend()))
}

/// Sees to the tables; says whether commits are on disk before they are answered. `None` where there
/// are no tables and none are to be made.
async fn prepare(
    lane: &Lane<Door>,
    schema: &Schema,
    look_only: bool,
) -> Result<Option<bool>, Error> {
    let schema = schema.clone();
    lane.call(move |conn| {
        let schema = schema.clone();
        Box::pin(async move {
            let there = match look_only {
                true => install::exists(conn, &schema).await,
                false => install::install(conn, &schema).await.map(|made| made.map(|()| true)),
            };
            if !there.map_err(trouble)?.map_err(Trouble::answered)? {
                return Ok(None);
            }
            let durable = sqlx::raw_sql(DURABLE).fetch_one(conn).await;
            durable.and_then(|row| row.try_get(0)).map(Some).map_err(trouble)
        })
    })
    .await
}
