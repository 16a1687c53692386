//! A lock can be lost: the work hears of it and stops, and the resource refuses the old token.
//!
//! `cargo run --package distlock --example lost_lock`

use std::time::Duration;

use distlock::{Error, Force, Kind};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = distlock::connect_default().await?;

    // Somebody takes the lock away while we work. (An expired lease looks just the same.)
    let operator = locks.clone();
    let done = locks
        .lock("report")
        .ttl(Duration::from_millis(500))
        .run(async |held| {
            println!("working with token {}", held.token());
            let _ = operator.force("report", Some(held.token()), Force::Revoke).await;
            std::future::pending::<()>().await; // dropped at the loss
        })
        .await;
    match done {
        Err(e) if e.kind() == Kind::Lost => println!("stopped: {e}"),
        other => println!("unexpected: {other:?}"),
    }

    // By hand: select on `lost()`, and `check` before each step that matters.
    let guard = locks.lock("report").await?;
    println!("the next holder's token is higher: {}", guard.token());
    tokio::select! {
        lost = guard.lost() => println!("{lost}"),
        () = async { println!("three quick steps, checked: {:?}", guard.check()) } => {}
    }
    Ok(())
}
