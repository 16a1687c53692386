//! `distlock watch`: a line for every change.

use std::collections::BTreeMap;
use std::time::Duration;

use distlock::backend::Clock;
use distlock::{HoldInfo, LockInfo, Locks, Name, Token};
use serde_json::{Value, json};

use crate::view::{document, plain};
use crate::{Done, Everywhere, Failure, Printer, args::Watch, store};

/// Looking more often than this would be work for the store and news for nobody.
const OFTEN: Duration = Duration::from_millis(10);

type Seen = BTreeMap<Name, LockInfo>;

/// The verb. It ends with a signal, or with its reader.
pub(crate) async fn watch(all: &Everywhere, args: &Watch, printer: Printer) -> Done {
    let clock = Clock::system();
    let interval = args.interval.max(OFTEN);
    let locks = there(all, &clock, interval, printer).await?;
    let mut seen = Seen::new();
    loop {
        let found = locks.list(&args.prefix).await?;
        let found: Seen = found.into_iter().map(|l| (l.lock.name.clone(), l)).collect();
        for change in changes(&seen, &found) {
            say(&change, &clock, printer)?;
        }
        seen = found;
        clock.sleep(interval).await;
    }
}

/// Waits for the store: the first lock taken in one that is files creates it, a look does not.
async fn there(
    all: &Everywhere,
    clock: &Clock,
    interval: Duration,
    printer: Printer,
) -> Result<Locks, Failure> {
    let mut told = false;
    loop {
        if let Some(locks) = store::find(all).await? {
            return Ok(locks);
        }
        if !std::mem::replace(&mut told, true) {
            printer.note("the store is not there yet: the first lock taken in it creates it");
        }
        clock.sleep(interval).await;
    }
}

/// One change of one lock.
struct Change<'a> {
    event: &'static str,
    lock: &'a LockInfo,
    hold: Option<&'a HoldInfo>,
}

fn changes<'a>(before: &'a Seen, after: &'a Seen) -> Vec<Change<'a>> {
    let mut all = Vec::new();
    for (name, lock) in before {
        let now = after.get(name);
        for hold in &lock.holds {
            if now.and_then(|n| find(n, hold.holder.token)).is_none() {
                all.push(Change { event: "freed", lock, hold: Some(hold) });
            }
        }
    }
    for (name, lock) in after {
        let was = before.get(name);
        for hold in &lock.holds {
            match was.and_then(|w| find(w, hold.holder.token)) {
                None => all.push(Change { event: "held", lock, hold: Some(hold) }),
                Some(old) if hold.revoked && !old.revoked => {
                    all.push(Change { event: "revoked", lock, hold: Some(hold) });
                }
                Some(_) => {}
            }
        }
        if was.map_or(0, |w| w.waiters.len()) != lock.waiters.len() {
            all.push(Change { event: "waiting", lock, hold: None });
        }
    }
    all
}

fn find(lock: &LockInfo, token: Token) -> Option<&HoldInfo> {
    lock.holds.iter().find(|h| h.holder.token == token)
}

fn say(change: &Change<'_>, clock: &Clock, printer: Printer) -> Result<(), Failure> {
    let time = utc(clock.wall_micros() / 1_000_000);
    let name = plain(change.lock.lock.name.as_str());
    let json = || -> Value {
        let token = change.hold.map(|h| h.holder.token);
        json!({ "time": time, "event": change.event, "token": token, "lock": document(change.lock) })
    };
    printer.data(json, || match change.hold {
        Some(hold) => {
            let holder = &hold.holder;
            format!("{time} {:7} {name} token {} {}", change.event, holder.token, holder.label)
        }
        None => format!("{time} waiting {name} {}", change.lock.waiters.len()),
    })
}

/// Seconds since 1970 as `2026-11-15T10:09:41Z`.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years of 365.2425 days that begin in March, so that the odd day comes last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{:04}-{month:02}-{date:02}T{h:02}:{m:02}:{s:02}Z", era * 400 + year)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn dates_are_right() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
