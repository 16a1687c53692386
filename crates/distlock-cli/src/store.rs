//! From the arguments to a client of a store.

use std::ffi::OsString;

use distlock::backend::memory::{self, Memory};
use distlock::{Connect, Error, Kind, Locks, Options};

use crate::{Everywhere, Failure, Printer, Status};

/// Connects to the store that the arguments or the environment name.
pub(crate) async fn connect(args: &Everywhere) -> Result<Locks, Error> {
    match &args.url {
        Some(url) => options(args)?.connect(url).await,
        None => options(args)?.connect_default().await,
    }
}

/// Connects to look, and creates nothing. A default store that was never used is an empty one in
/// memory, and so is a database without tables; a file that was named and is not there is a mistake
/// in the name.
pub(crate) async fn look(args: &Everywhere, printer: Printer) -> Result<Locks, Failure> {
    if let Some(locks) = find(args).await? {
        return Ok(locks);
    }
    if is_default(args) {
        printer.note("the default store is not there yet: nobody has taken a lock in it");
    } else if !is_of_files(args) {
        printer.note("the database has no tables for locks yet: the first lock taken creates them");
    } else {
        let named = args.url.as_deref().unwrap_or("the URL that the environment names");
        return Err(Failure::new(Status::UNREACHABLE, format!("there is no store at {named}"))
            .hint("check its path; the first `run` or `acquire` creates it"));
    }
    Ok(options(args)?.open(Memory::new())?)
}

/// The store, if it is there: nothing is created.
pub(crate) async fn find(args: &Everywhere) -> Result<Option<Locks>, Error> {
    options(args)?.connect_to_look(args.url.as_deref()).await
}

fn options(args: &Everywhere) -> Result<Options, Error> {
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
    Ok(options)
}

/// Whether the store that was named is files: one that is not there has another name.
fn is_of_files(args: &Everywhere) -> bool {
    let named = || var("DISTLOCK_URL").map(|url| url.to_string_lossy().into_owned());
    let noted = || std::fs::read_to_string(var("DISTLOCK_URL_FILE")?).ok();
    let url = args.url.clone().or_else(named).or_else(noted).unwrap_or_default();
    ["sqlite:", "file:"].iter().any(|scheme| url.trim_start().starts_with(scheme))
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
