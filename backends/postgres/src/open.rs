//! From a URL to a store that answers.

use std::sync::Arc;

use distlock_core::leased::Leased;
use distlock_core::seam::Backend;
use distlock_core::url::StoreUrl;
use distlock_core::{Clock, Error, Store};
use distlock_sql::{Lane, Trouble, Versioned};

use crate::address;
use crate::door::Door;
use crate::grip::Grip;
use crate::install;
use crate::options::{Algorithm, PostgresOptions};
use crate::sessions::Sessions;
use crate::statements::{Schema, Statements};
use crate::store::Postgres;
use crate::trouble::trouble;
use crate::version::{self, States};

/// The schemes of the PostgreSQL stores.
pub const SCHEMES: [&str; 2] = ["postgres", "postgresql"];

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
pub async fn open(mut url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    let options = PostgresOptions::take_from(&mut url)?;
    let to = address::options(&mut url)?;
    let known = [&PostgresOptions::KEYS[..], &address::KEYS, &["namespace", "require"]].concat();
    url.finish(&known)?;
    let site = url.to_string();
    let schema = Schema::new(&options.schema)?;
    let door = Arc::new(Door::new(to, options.timeout));
    let connections = match options.algorithm {
        Algorithm::Version => version::CONNECTIONS,
        Algorithm::Queue | Algorithm::Advisory | Algorithm::RowLock => 1,
    };
    let front = Lane::new(door.clone(), Clock::system(), options.timeout, connections);
    prepare(&front, schema.clone()).await.map_err(|e| e.during("connect").store(&site))?;
    match options.algorithm {
        Algorithm::Queue => {
            let say = Statements::new(&schema);
            Ok(Postgres::at(door, site, &options, say, front).await?.into_backend())
        }
        Algorithm::Version => {
            let states = States::new(front, site, &options, &schema);
            Ok(Arc::new(Leased::new(Versioned::new(states)?)))
        }
        Algorithm::Advisory | Algorithm::RowLock => {
            let advisory = options.algorithm == Algorithm::Advisory;
            let grip = if advisory { Grip::Advisory } else { Grip::RowLock };
            Ok(Sessions::at(door, site, &options, schema, grip, front).await?.into_backend())
        }
    }
}

async fn prepare(lane: &Lane<Door>, schema: Schema) -> Result<(), Error> {
    lane.call(move |conn| {
        let schema = schema.clone();
        Box::pin(async move {
            let installed = install::install(conn, &schema).await.map_err(trouble)?;
            installed.map_err(Trouble::answered)
        })
    })
    .await
}
