//! Waiting, but not for ever: busy is an answer that names the holder.
//!
//! `cargo run --package distlock --example timed_wait`

use std::time::Duration;

use distlock::Error;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = distlock::connect_default().await?;
    let first = locks.lock("printer").label("Ada, printing a book").await?;

    // Not at all: `?` is store trouble, what remains is granted or busy.
    match locks.lock("printer").try_acquire().await? {
        Ok(_guard) => unreachable!("Ada holds it"),
        Err(busy) => println!("at once: {busy}"),
    }
    // For a while.
    match locks.lock("printer").try_acquire_for(Duration::from_millis(300)).await? {
        Ok(_guard) => unreachable!("Ada still holds it"),
        Err(busy) => println!("later:   {busy}"),
    }
    // As long as it takes; the release below makes it this one's turn.
    let (second, released) = tokio::join!(locks.lock("printer").acquire(), first.release());
    let _ = released?;
    println!("at last: token {}", second?.token());
    Ok(())
}
