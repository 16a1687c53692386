//! `distlock release`: the end of a lock that `acquire` took.

use distlock::Released;
use serde_json::json;

use super::renew::ticket;
use crate::{Done, Everywhere, Failure, Printer, Status, args::Release, store, wait};

/// The verb.
pub(crate) async fn release(all: &Everywhere, args: &Release, printer: Printer) -> Done {
    let ticket = ticket(&args.ticket)?;
    let locks = store::connect(all).await?;
    let released = locks.resume(&ticket).await?.release().await?;
    wait::close(&locks).await;
    if released == Released::WasLost {
        let what = format!("lock {:?} was lost before it was released", ticket.lock.to_string());
        return Err(Failure::new(Status::LOST, what)
            .hint("its TTL ended: take a longer one, or renew it meanwhile"));
    }
    if printer.json {
        let (name, token) = (&ticket.lock.name, ticket.token);
        printer.line(&json!({ "released": true, "name": name, "token": token }).to_string())?;
    } else {
        printer.note(format!("released {:?}", ticket.lock.to_string()));
    }
    Ok(())
}
