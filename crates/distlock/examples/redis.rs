//! Sixteen workers on one Redis: each waits its turn, and the tokens rise in the order of the turns.
//!
//! `DISTLOCK_URL=redis://127.0.0.1 cargo run --package distlock --features redis --example redis`
//!
//! Any store will do: `redis+sentinel://…`, `redis+cluster://…`, `redlock://…`, or none named for the
//! embedded default. A server that started within the last 30 s is in quarantine, and says so.

#![allow(clippy::disallowed_methods)] // a user's program spawns where it likes

use distlock::Error;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = distlock::connect_default().await?;
    println!("{} ({} fence)", locks.site(), locks.capability().fence);
    let name = format!("workers/{}", std::process::id());
    let mut workers = Vec::new();
    for worker in 1..=16 {
        let lock = locks.lock(&name).label(format!("worker {worker}"));
        let lock = lock.on_wait(move |status| println!("worker {worker} waits: {status}"));
        workers.push(tokio::spawn(async move {
            let guard = lock.await?;
            let token = guard.token();
            println!("worker {worker} has its turn with token {token}");
            let _ = guard.release().await?;
            Ok::<_, Error>(token)
        }));
    }
    let mut tokens = Vec::new();
    for worker in workers {
        tokens.push(worker.await.expect("a worker does not panic")?);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 16, "each turn has a token of its own");
    Ok(())
}
