//! `distlock ls`: what is held or waited for.

use crate::view::{document, table};
use crate::{Done, Everywhere, Printer, args::Ls, store, wait};

/// The verb.
pub(crate) async fn ls(all: &Everywhere, args: &Ls, printer: Printer) -> Done {
    let locks = store::look(all, printer).await?;
    let found = locks.list(&args.prefix).await?;
    wait::close(&locks).await;
    if printer.json {
        for lock in &found {
            printer.line(&document(lock).to_string())?;
        }
    } else if found.is_empty() {
        printer.note("nothing is held or waited for");
    } else {
        printer.line(&table(&found))?;
    }
    Ok(())
}
