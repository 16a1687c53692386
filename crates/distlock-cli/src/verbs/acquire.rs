//! `distlock acquire`: take here, release there.

use std::time::Duration;

use distlock::{Human, Locks, Ticket};
use serde_json::{Value, json};

use crate::wait::{self, Turn};
use crate::{
    Done, Everywhere, Failure, Printer, Signals, Status, args::Acquire, store, view::seconds,
};

/// How long a lock is taken for when nobody says: a step of a pipeline takes minutes.
const USUAL: Duration = Duration::from_secs(600);

/// The verb.
pub(crate) async fn acquire(all: &Everywhere, args: &Acquire, printer: Printer) -> Done {
    let mut signals = Signals::listen()?;
    let (locks, patience) = wait::connect(all, &args.wait).await?;
    can_detach(&locks)?;
    let ttl = args.ttl.unwrap_or(USUAL.min(locks.capability().ttl_max));
    let lock = wait::with(locks.lock(&args.name), &args.hold).ttl(ttl);
    let guard = match wait::turn(&locks, lock, &args.name, &patience, &mut signals, printer).await?
    {
        Turn::Granted(guard) => guard,
        Turn::Busy(busy) => return Err(Failure::new(Status::BUSY, busy)),
    };
    let ticket = guard.ticket();
    if args.ttl.is_none() && ticket.ttl < USUAL {
        printer.note(format!(
            "held for {}, the longest that {} grants; `distlock renew` prolongs it",
            Human(ticket.ttl),
            locks.capability().store
        ));
    }
    // Printed first: a ticket that nobody could read must not leave a lock behind.
    let printed = printer.data(|| document(&ticket), || ticket.to_string());
    match printed {
        Ok(()) => drop(guard.detach()?),
        Err(failure) => {
            let _ = guard.release().await;
            wait::close(&locks).await;
            return Err(failure);
        }
    }
    wait::close(&locks).await;
    Ok(())
}

/// Refuses a store whose locks end with their process, before anything is taken.
pub(crate) fn can_detach(locks: &Locks) -> Result<(), Failure> {
    if locks.capability().detach && !store::is_alone(locks) {
        return Ok(());
    }
    let store = locks.capability().store;
    Err(Failure::new(
        Status::REFUSED,
        format!("the locks of {store} end with their process: there is no ticket to them"),
    )
    .hint("use `distlock run`, or a store whose `distlock check` says detach, such as sqlite"))
}

/// A ticket as a document.
pub(crate) fn document(ticket: &Ticket) -> Value {
    json!({
        "ticket": ticket.to_string(),
        "name": ticket.lock.name,
        "namespace": ticket.lock.space,
        "token": ticket.token,
        "ttl_seconds": seconds(ticket.ttl),
    })
}
