//! Fences, optimistic updates and once-only effects on a real MariaDB and a real PostgreSQL. The
//! laws are the same text for both (`laws.rs`); what differs is how to see that somebody waits.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests

use std::future::Future;
use std::time::Duration;

use distlock_fence::Token;
use distlock_testkit::servers::{Mariadb, Postgres};
use libtest_mimic::{Arguments, Trial};

mod mysql;
mod postgres;
mod statements;

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

/// Asks until it is so. A server that never gets there is a failure, not a pass.
async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    for _ in 0..3000 {
        if so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to this: {what}");
}

fn main() {
    let args = Arguments::from_args();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (maria, postgres) = runtime.block_on(async {
        (Mariadb::new().start().await.unwrap(), Postgres::new().start().await.unwrap())
    });
    let at = format!("postgres://postgres@{}/postgres", postgres.addr());
    let mut trials: Vec<Trial> = mysql::trials(&runtime, &Mariadb::url(&maria));
    trials.extend(postgres::trials(&runtime, &at));
    trials.extend(statements::trials(&runtime, &Mariadb::url(&maria), &at));
    let ended = libtest_mimic::run(&args, trials);
    drop((maria, postgres));
    ended.exit();
}
