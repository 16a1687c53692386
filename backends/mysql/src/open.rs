//! From a URL to a store.

use std::sync::Arc;

use distlock_core::{Backend, Capability, Error, LeaseDriver, Store, StoreUrl};
use distlock_sql::{Opens, Trouble};
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlConnectOptions;

use crate::options::{Algorithm, MysqlOptions, server};
use crate::schema::{Tables, layout, ready};
use crate::{
    capability::promised, cas_store::Versions, connector::Connector, errors::calling,
    row_lock::RowLock, server_variables::Settings, store::Mysql,
};

/// What a URL names.
pub(crate) struct Target {
    pub(crate) to: MySqlConnectOptions,
    pub(crate) options: MysqlOptions,
    pub(crate) tables: Tables,
    pub(crate) site: String,
}

impl Target {
    pub(crate) fn of(mut url: StoreUrl) -> Result<Self, Error> {
        let options = MysqlOptions::take_from(&mut url)?;
        let to = server(&mut url)?;
        url.finish(&["namespace", "require"])?;
        let tables = Tables::new(&options.prefix);
        Ok(Self { to, options, tables, site: url.to_string() })
    }

    /// Looks at the server: makes the tables if need be, and says what it promises.
    pub(crate) async fn greet(&self) -> Result<Capability, Error> {
        self.look(async |conn| {
            if !self.options.look_only {
                ready(conn, &self.tables).await?;
            }
            let settings = Settings::read(conn).await.map_err(calling)?;
            Ok(promised(&self.options, &settings))
        })
        .await
    }

    /// Whether the tables are there; makes none.
    async fn exists(&self) -> Result<bool, Error> {
        self.look(async |conn| Ok(layout(conn, &self.tables).await?.is_some())).await
    }

    /// Does something on a connection of its own, within the bound of one call.
    async fn look<T>(
        &self,
        work: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        let connector = Connector::new(self.to.clone(), None);
        let look = async {
            let mut conn = connector.open().await?;
            let seen = work(&mut conn).await.map_err(|t| t.error)?;
            connector.close(conn).await;
            Ok(seen)
        };
        let clock = distlock_core::Clock::system();
        let looked = clock.timeout(self.options.timeout, look).await;
        let late = || {
            Error::unanswered(self.options.timeout).not_applied().with_hint(
                "see whether the server runs and can be reached; ?timeout= sets the bound",
            )
        };
        looked.unwrap_or_else(|| Err(late())).map_err(|e| e.during("connect").store(&self.site))
    }
}

/// The store that a URL names, whichever algorithm it asks for.
///
/// # Errors
/// [`Usage`](distlock_core::Kind::Usage) for an invalid URL, and whatever keeps the server
/// from answering or its tables from being made.
///
/// # Cancel safety
/// Dropping the future closes what it had opened.
pub async fn open(url: StoreUrl) -> Result<Arc<dyn Backend>, Error> {
    start(Target::of(url)?).await
}

/// The same for a client that only looks: it makes no tables; `None` where there are none.
///
/// # Errors
/// As [`open`].
///
/// # Cancel safety
/// As [`open`].
pub async fn open_to_look(url: StoreUrl) -> Result<Option<Arc<dyn Backend>>, Error> {
    let mut target = Target::of(url)?;
    target.options.look_only = true;
    match target.exists().await? {
        true => start(target).await.map(Some),
        false => Ok(None),
    }
}

async fn start(target: Target) -> Result<Arc<dyn Backend>, Error> {
    match target.options.algorithm {
        Algorithm::Queue => Ok(Mysql::at(target).await?.into_backend()),
        Algorithm::Version => Ok(Arc::new(LeaseDriver::new(Versions::at(target).await?))),
        Algorithm::RowLock => Ok(RowLock::at(target).await?.into_backend()),
    }
}
