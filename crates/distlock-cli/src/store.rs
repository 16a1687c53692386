//! From the arguments to a client of a store.

use distlock::{Connect, Error, Locks};

use crate::args::Everywhere;
use crate::printer::Printer;

/// Connects to the store that the arguments or the environment name.
pub(crate) async fn connect(args: &Everywhere) -> Result<Locks, Error> {
    let mut options = Locks::options();
    // Not clap's `env`: an empty variable means "none" here, as with the URL.
    if let Some(space) = args.namespace.clone().or_else(|| var("DISTLOCK_NAMESPACE")) {
        options = options.namespace(space);
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

fn var(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
}
