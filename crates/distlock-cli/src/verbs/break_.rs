//! `distlock break`: takes a lock away.

use distlock::{Force, Forced, HoldInfo, Human};
use serde_json::json;

use crate::{
    Done, Everywhere, Failure, Printer, Status,
    args::Break,
    store,
    view::{plain, tokens},
    wait,
};

/// The verb: looks first, and takes it from the holder it saw, so that a lock that changed hands in
/// between is left alone.
pub(crate) async fn break_(all: &Everywhere, args: &Break, printer: Printer) -> Done {
    let locks = store::look(all, printer).await?;
    let found = locks.show(&args.name).await?;
    wait::close(&locks).await;
    let name = plain(&args.name);
    let holds = found.map(|l| l.holds).unwrap_or_default();
    if holds.is_empty() {
        printer.note(format!("nobody holds {name}: nothing to break"));
        return Ok(());
    }
    let wanted = |h: &&HoldInfo| args.token.is_none_or(|t| h.tokens().contains(t));
    let chosen: Vec<&HoldInfo> = holds.iter().filter(wanted).collect();
    if let (Some(token), true) = (args.token, chosen.is_empty()) {
        let now = tokens(&holds[0]);
        return Err(Failure::new(
            Status::NO,
            format!("{name} is not held with token {token}, but with {now}"),
        )
        .hint("look again with `distlock show`: it has changed hands"));
    }
    let how = if args.now { Force::Now } else { Force::Revoke };
    let locks = store::connect(all).await?;
    for hold in chosen {
        let token = hold.holder.token;
        if locks.force(&args.name, Some(token), how).await? == Forced::NoMatch {
            return Err(Failure::new(
                Status::NO,
                format!("{name} changed hands before token {token} could be taken away"),
            )
            .hint("look again with `distlock show`"));
        }
        let (left, of) = (hold.holder.left.unwrap_or_default(), tokens(hold));
        printer.data(
            || json!({ "name": args.name, "token": token, "now": args.now }),
            || match how {
                Force::Now => format!(
                    "freed {name} (token {of}, {}); its old holder may believe in it for {}: \
                     two at once are possible until then",
                    hold.holder.label,
                    Human(left)
                ),
                Force::Revoke => format!(
                    "revoked {name} (token {of}, {}); free when its holder lets go, at the \
                     latest in {}",
                    hold.holder.label,
                    Human(left)
                ),
            },
        )?;
    }
    wait::close(&locks).await;
    Ok(())
}
