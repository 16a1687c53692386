//! From the arguments to a client of a store.

use std::ffi::OsString;

use distlock::{Connect, Error, Kind, Locks, memory};

use crate::args::Everywhere;
use crate::printer::Printer;

/// Connects to the store that the arguments or the environment name.
pub(crate) async fn connect(args: &Everywhere) -> Result<Locks, Error> {
    let mut options = Locks::options();
    // Not clap's `env`: an empty variable means "none" here, as with the URL.
    if let Some(space) = &args.namespace {
        options = options.namespace(space);
    } else if let Some(space) = var("DISTLOCK_NAMESPACE") {
        let space = space.into_string().map_err(|_| {
            Error::new(Kind::Usage, "DISTLOCK_NAMESPACE is not UTF-8")
                .with_hint("a namespace is at most 64 of A-Z a-z 0-9 . _ -")
        })?;
        options = options.namespace(space.trim());
    }
    match &args.url {
        Some(url) => options.connect(url).await,
        None => options.connect_default().await,
    }
}

/// Whether nobody named a store, so that the embedded default is used.
pub(crate) fn is_default(args: &Everywhere) -> bool {
    args.url.is_none() && var("DISTLOCK_URL").is_none() && var("DISTLOCK_URL_FILE").is_none()
}

/// Says what the default store cannot do, before somebody relies on it.
pub(crate) fn note_default(args: &Everywhere, printer: Printer) {
    if is_default(args) {
        printer.note(
            "note: no store is named, so this is the default one: it excludes only processes of \
             the same user on the same host (name one with --url or DISTLOCK_URL; -q hides this)",
        );
    }
}

/// Whether the locks of a store live in this process alone, where nobody else can ask for them.
pub(crate) fn is_alone(locks: &Locks) -> bool {
    locks.capability().scope == memory::capability().scope
}

/// A variable, if it says something.
fn var(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|v| !v.to_string_lossy().trim().is_empty())
}
