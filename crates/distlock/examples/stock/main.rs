//! The last teapots of a shop, sold four ways to the same rush of buyers, on a real MariaDB and a
//! real PostgreSQL: under a lock, under a lock and a fence, by an optimistic update, and by one
//! conditional statement. In the middle of each, one buyer's process is stopped between its look at
//! the stock and its purchase, for longer than its lease.
//!
//! `cargo run --package distlock --example stock`
//!
//! It starts private servers. To use yours (it drops and creates the tables `teapots` and
//! `teapots_sold` there, and keeps its locks in the same database unless another store is named):
//!
//! `… --example stock -- mysql://user:password@host/db postgres://… [--locks URL] [--items N]`

mod rush;
mod shop;
mod sleeper;
mod way;

use distlock_testkit::servers::{Mariadb, Postgres};

use rush::{Plan, Row, rush};
use shop::Trouble;
use way::Way;

#[tokio::main]
async fn main() -> Result<(), Trouble> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(told) = sleeper::told(&args) {
        return sleeper::run(told).await;
    }
    let mut option = |name: &str| {
        let at = args.iter().position(|a| a == name)?;
        let value = args.get(at + 1)?.clone();
        args.drain(at..at + 2);
        Some(value)
    };
    let items = option("--items").map_or(Ok(20), |n| n.parse())?;
    let locks = option("--locks");

    // Kept until the end: a server stops when its value is dropped.
    let mut servers = Vec::new();
    if args.is_empty() {
        let (maria, postgres) =
            (Mariadb::new().durable().start().await?, Postgres::new().durable().start().await?);
        args =
            vec![Mariadb::url(&maria), format!("postgres://postgres@{}/postgres", postgres.addr())];
        servers.extend([maria, postgres]);
    }
    println!("{}", Row::HEAD);
    for database in &args {
        let locks = locks.as_deref().unwrap_or(database);
        for &way in Way::ALL {
            let plan = Plan { database, locks, way, items, buyers: items * 3, width: 8 };
            println!("{}", rush(&plan).await?);
        }
    }
    println!(
        "\nof {items} items; one buyer's process was stopped between its look and its purchase"
    );
    Ok(())
}
