//! The smallest program: hold a lock, use its token, give it back.
//!
//! `cargo run --package distlock --example hello`

use distlock::{Error, Released};

#[tokio::main]
async fn main() -> Result<(), Error> {
    // DISTLOCK_URL, or SQLite in the user's state directory.
    let locks = distlock::connect_default().await?;
    let guard = locks.lock("hello").label("the hello example").await?;
    println!("I hold {} with token {}", guard.lock(), guard.token());
    match guard.release().await? {
        Released::Released => println!("and gave it back"),
        Released::WasLost => println!("but lost it on the way"),
    }
    Ok(())
}
