//! The laws every store must pass, over the version algorithm on one MariaDB server.
use distlock_core::Locks;
use distlock_core::url::StoreUrl;
use distlock_mysql::{Algorithm, MysqlOptions, capability, open};
use distlock_testkit::servers::Mariadb;
use distlock_testkit::{Made, Suite, suite};

suite!(Suite::by_url(
    capability(&MysqlOptions::new().algorithm(Algorithm::Version), true),
    |_| Box::pin(async {
        let server = Mariadb::new().durable().start().await?;
        Ok(Made::with(format!("{}?algorithm=version", Mariadb::url(&server)), server))
    }),
    |url| {
        let url = StoreUrl::parse(url);
        Box::pin(async move { Ok(Locks::from_store(open(url?).await?)) })
    }
));
