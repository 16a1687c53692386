//! `distlock schema`: the tables of a store, for whoever may make them.

use crate::args::Schema;
use crate::exit::{Outcome, Status};
use crate::printer::Printer;

/// The verb.
pub(crate) fn schema(args: &Schema, printer: Printer) -> Outcome {
    let text = distlock::schema(&args.store, args.prefix.as_deref())?;
    printer.bytes(text.as_bytes())?;
    Ok(Status::OK)
}
