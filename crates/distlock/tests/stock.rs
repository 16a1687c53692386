//! The example `stock`, small, on both databases, each with its own locks: only the unfenced lock
//! sells what is not there.
//! A program of its own, because the buyer that is stopped is this program again.
#![allow(dead_code)] // the example's own table

#[path = "../examples/stock/rush.rs"]
mod rush;
#[path = "../examples/stock/shop.rs"]
mod shop;
#[path = "../examples/stock/sleeper.rs"]
mod sleeper;
#[path = "../examples/stock/way.rs"]
mod way;

use distlock_testkit::servers::{Mariadb, Postgres, Server};
use libtest_mimic::{Arguments, Failed, Trial};

use rush::{Plan, rush};
use shop::Trouble;
use way::{Bought, Way};

const ITEMS: u32 = 5;

/// Once, unless `DISTLOCK_STOCK_RUNS` says how often.
fn runs() -> u32 {
    std::env::var("DISTLOCK_STOCK_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

async fn every_way(database: &str, server: Server) -> Result<(), Trouble> {
    for run in 1..=runs() {
        for &way in Way::ALL {
            let (items, buyers) = (ITEMS, ITEMS * 3);
            let plan = Plan { database, locks: database, way, items, buyers, width: 4 };
            let row = rush(&plan).await?;
            println!("{run}: {row}");
            let items = i64::from(items);
            let expected = match way {
                // One for the stopped buyer, and all that it put back on the shelf.
                Way::Lock => (2 * items, items, Bought::Yes),
                Way::LockAndFence => (items, 0, Bought::Stale),
                Way::Optimistic | Way::Statement => (items, 0, Bought::SoldOut),
            };
            assert_eq!((row.sold, row.oversold, row.sleeper), expected, "{row}");
            assert_eq!(row.refused, i64::from(buyers) * 2 + 1 - row.sold, "{row}");
        }
    }
    drop(server);
    Ok(())
}

async fn on_mariadb() -> Result<(), Trouble> {
    let server = Mariadb::new().start().await?;
    every_way(&Mariadb::url(&server), server).await
}

async fn on_postgres() -> Result<(), Trouble> {
    let server = Postgres::new().start().await?;
    let url = format!("postgres://postgres@{}/postgres", server.addr());
    every_way(&url, server).await
}

fn block_on(work: impl Future<Output = Result<(), Trouble>>) -> Result<(), Trouble> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(told) = sleeper::told(&args) {
        return block_on(sleeper::run(told)).expect("the stopped buyer ends well");
    }
    let said = |e: Trouble| Failed::from(e.to_string());
    let trials = vec![
        Trial::test("only_the_unfenced_lock_oversells_on_mariadb", move || {
            block_on(on_mariadb()).map_err(said)
        }),
        Trial::test("only_the_unfenced_lock_oversells_on_postgres", move || {
            block_on(on_postgres()).map_err(said)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
