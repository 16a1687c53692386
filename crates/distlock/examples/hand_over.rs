//! Take a lock here and release it there: a pipeline whose steps are processes of their own.
//!
//! `cargo run --package distlock --example hand_over`

use std::process::Command;
use std::time::Duration;

use distlock::{Error, Kind, Released, Ticket};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = distlock::connect_default().await?;
    // The second process: given the ticket as its argument.
    if let Some(ticket) = std::env::args().nth(1) {
        let ticket: Ticket = ticket.parse()?;
        let guard = locks.resume(&ticket).await?;
        println!("process {} took up token {}", std::process::id(), guard.token());
        assert_eq!(guard.release().await?, Released::Released);
        return Ok(());
    }
    // The first: takes the lock for long enough and lets go of the guard, not of the lock.
    let guard = locks.lock("import").ttl(Duration::from_secs(600)).await?;
    println!("process {} holds token {}", std::process::id(), guard.token());
    let ticket = guard.detach()?.to_string();
    assert!(locks.lock("import").try_acquire().await?.is_err(), "still held");

    let trouble = |e: std::io::Error| Error::new(Kind::Store, "no second process").because(e);
    let me = std::env::current_exe().map_err(trouble)?;
    let status = Command::new(me).arg(&ticket).status().map_err(trouble)?;
    assert!(status.success());

    println!("free again: {}", locks.lock("import").try_acquire().await?.is_ok());
    Ok(())
}
