//! Ten hosts start the same job at the same minute; it is short, and yet must run once.
//!
//! `cargo run --package distlock --example nightly`

use std::time::Duration;

use distlock::Error;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = distlock::connect_default().await?;
    let night = format!("nightly/{}", std::process::id());
    let mut ran = 0;
    for host in 1..=10 {
        // A release before `min_hold` frees the lock only then: a host whose clock is some seconds
        // late finds the job done, not free.
        let lock =
            locks.lock(&night).label(format!("host {host}")).min_hold(Duration::from_secs(50));
        match lock.try_acquire().await? {
            Ok(guard) => {
                ran += 1;
                println!("host {host} runs the job (token {})", guard.token());
                let _ = guard.release().await?;
            }
            Err(busy) => println!("host {host} skips: {busy}"),
        }
    }
    println!("the job ran {ran} time(s)");
    assert_eq!(ran, 1);
    Ok(())
}
