//! `distlock renew`: longer, for a lock that `acquire` took.

use std::io::Read;

use distlock::{Ticket, Ttl};

use super::acquire::document;
use crate::{Done, Everywhere, Failure, Printer, Status, args::Renew, store, wait};

/// The verb.
pub(crate) async fn renew(all: &Everywhere, args: &Renew, printer: Printer) -> Done {
    let mut ticket = ticket(&args.ticket)?;
    let locks = store::connect(all).await?;
    if let Some(ttl) = args.ttl {
        ticket.ttl = locks.capability().grantable(Ttl::new(ttl)?)?;
    }
    let guard = locks.resume(&ticket).await?;
    let ticket = guard.detach()?;
    printer.data(|| document(&ticket), || ticket.to_string())?;
    wait::close(&locks).await;
    Ok(())
}

/// Reads a ticket: the argument, or stdin for `-`.
pub(crate) fn ticket(text: &str) -> Result<Ticket, Failure> {
    if text != "-" {
        return Ok(text.parse()?);
    }
    let mut read = String::new();
    std::io::stdin().read_to_string(&mut read).map_err(|e| {
        Failure::new(Status::USAGE, format!("cannot read a ticket from stdin: {e}"))
    })?;
    Ok(read.trim().parse()?)
}
