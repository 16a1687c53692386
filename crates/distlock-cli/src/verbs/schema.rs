//! `distlock schema`: the tables of a store, for a user that may make them.

use distlock::{Error, Kind};

use crate::{Done, Printer, args::Schema};

/// The verb.
pub(crate) fn schema(args: &Schema, printer: Printer) -> Done {
    let postgres = args.store.starts_with("postgres");
    let other = if postgres { args.prefix.as_ref() } else { args.schema.as_ref() };
    if other.is_some() {
        return Err(Error::new(Kind::Usage, "that option is of another store")
            .with_hint("--prefix goes with mysql, --schema with postgres")
            .into());
    }
    let text = distlock::schema(&args.store, args.prefix.as_deref().or(args.schema.as_deref()))?;
    printer.bytes(text.as_bytes())
}
