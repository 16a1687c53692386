//! `distlock show`: one lock, with its queue.

use distlock::{Human, LockInfo};
use serde_json::json;

use crate::view::{document, plain, state, tokens};
use crate::{Done, Everywhere, Printer, args::Show, store, wait};

/// The verb.
pub(crate) async fn show(all: &Everywhere, args: &Show, printer: Printer) -> Done {
    let locks = store::look(all, printer).await?;
    let found = locks.show(&args.name).await?;
    let space = locks.namespace().clone();
    wait::close(&locks).await;
    match found {
        Some(lock) => printer.data(|| document(&lock), || text(&lock)),
        None => printer.data(
            || json!({ "name": args.name, "namespace": space, "holders": [], "waiters": [] }),
            || format!("{} is free", plain(&args.name)),
        ),
    }
}

fn text(lock: &LockInfo) -> String {
    let name = plain(lock.lock.name.as_str());
    let mut lines = Vec::new();
    for hold in &lock.holds {
        // An operator revoked it, not its holder.
        let by = match (hold.revoked, hold.lingering) {
            (true, _) => ", still held by",
            (false, true) => " after",
            (false, false) => " by",
        };
        lines.push(format!("{name} is {}{by} {}", state(hold), hold.holder));
        if hold.tokens().len().get() > 1 {
            lines.push(format!("  handed on inside its process: tokens {}", tokens(hold)));
        }
    }
    if lock.holds.is_empty() {
        lines.push(format!("{name} is free"));
    }
    for (i, waiter) in lock.waiters.iter().enumerate() {
        let waited = Human(waiter.waited);
        let (label, owner) = (&waiter.label, &waiter.owner);
        lines.push(format!("{:>3}. {label} waits for {waited} (owner {owner})", i + 1));
    }
    lines.join("\n")
}
