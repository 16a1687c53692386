//! A lock's queue: one small file for each waiter.
//!
//! A ticket is a file of its own rather than a link to the session's live file: the name says
//! whose it is, so liveness is still one look per session, and there is room for owner and label
//! and no limit of links.

use std::io::{self, Write};
use std::path::Path;

use distlock_core::{Ask, BootInstant, Label, Owner, ReqId};
use serde::{Deserialize, Serialize};

use crate::errors::if_there;
use crate::live_processes::is_alive;
use crate::lockfile::{make_dir, own, read};

/// A place in the queue. Sorts by arrival: twenty digits of boot-clock nanoseconds, session, request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(Box<str>);

/// The waiter, for people to read.
#[derive(Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) owner: Owner,
    pub(crate) label: Label,
}

impl Ticket {
    pub(crate) fn new(at: BootInstant, session: &str, req: ReqId) -> Self {
        Self(format!("{:020}-{session}-{req}", at.as_nanos()).into())
    }

    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('-');
        let (at, session, req) = (parts.next()?, parts.next()?, parts.next()?);
        let fits = at.len() == 20
            && at.bytes().all(|b| b.is_ascii_digit())
            && session.len() == 16
            && req.parse::<ReqId>().is_ok()
            && parts.next().is_none();
        fits.then(|| Self(name.into()))
    }

    pub(crate) fn session(&self) -> &str {
        &self.0[21..37]
    }

    pub(crate) fn req(&self) -> Option<ReqId> {
        self.0[38..].parse().ok()
    }

    pub(crate) fn since(&self) -> BootInstant {
        BootInstant::from_nanos(self.0[..20].parse().unwrap_or(0))
    }
}

/// Takes a place.
pub(crate) fn join(line: &Path, ticket: &Ticket, ask: &Ask) -> io::Result<()> {
    let who = Waiting { owner: ask.owner.clone(), label: ask.label.clone() };
    let path = line.join(&*ticket.0);
    let mut how = own();
    how.write(true).create(true).truncate(true);
    loop {
        match how.open(&path) {
            Ok(mut file) => return file.write_all(&serde_json::to_vec(&who)?),
            // Swept, or nobody ever waited here.
            Err(e) if e.kind() == io::ErrorKind::NotFound => make_dir(line)?,
            Err(e) => return Err(e),
        }
    }
}

/// Gives a place up.
pub(crate) fn leave(line: &Path, ticket: &Ticket) {
    if let Err(e) = if_there(std::fs::remove_file(line.join(&*ticket.0))) {
        tracing::warn!(error = %e, "a ticket stays in line until its process ends");
    }
}

/// Whether a place is still taken.
pub(crate) fn has(line: &Path, ticket: &Ticket) -> bool {
    line.join(&*ticket.0).exists()
}

/// Everybody in the queue, in order, the dead among them.
pub(crate) fn all(line: &Path) -> io::Result<Vec<Ticket>> {
    let Some(entries) = if_there(std::fs::read_dir(line))? else { return Ok(Vec::new()) };
    let mut tickets = Vec::new();
    for entry in entries {
        tickets.extend(entry?.file_name().to_str().and_then(Ticket::parse));
    }
    tickets.sort_unstable();
    Ok(tickets)
}

/// The queue without the dead in front of its first living ticket, whose tickets are removed.
/// `own` lives, since it asks.
pub(crate) fn from_first_alive(line: &Path, sessions: &Path, own: &str) -> io::Result<Vec<Ticket>> {
    let mut tickets = all(line)?;
    let mut dead = 0;
    let mut last = "";
    for ticket in &tickets {
        let session = ticket.session();
        if session == own || (session != last && is_alive(sessions, session)?) {
            break;
        }
        last = session;
        leave(line, ticket);
        dead += 1;
    }
    tickets.drain(..dead);
    Ok(tickets)
}

/// The waiter of a ticket; `None` when it has left.
pub(crate) fn who(line: &Path, ticket: &Ticket) -> Option<Waiting> {
    let text = read(&line.join(&*ticket.0)).ok()?;
    // One that has only just arrived may still be writing its content.
    serde_json::from_slice(&text).ok().or_else(|| {
        let owner = Owner::named(ticket.req()?.to_string()).ok()?;
        Some(Waiting { owner, label: Label::new("just arrived") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_sort_by_arrival_and_say_whose_they_are() {
        let req = ReqId::random();
        let early = Ticket::new(BootInstant::from_nanos(999), "ffffffffffffffff", req);
        let late = Ticket::new(BootInstant::from_nanos(1000), "0000000000000000", req);
        assert!(early < late);
        assert_eq!(Ticket::parse(&early.0), Some(early.clone()));
        assert_eq!((early.session(), early.req()), ("ffffffffffffffff", Some(req)));
        assert_eq!(late.since().as_nanos(), 1000);
        assert!(Ticket::parse("x").is_none() && Ticket::parse("1-2-3").is_none());
    }
}
