//! `distlock completions`: from the one definition.

use clap::CommandFactory;

use crate::args::{Args, Completions};
use crate::exit::{Outcome, Status};
use crate::printer::Printer;

/// The verb.
pub(crate) fn completions(args: &Completions, printer: Printer) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "distlock", &mut text);
    printer.bytes(&text)?;
    Ok(Status::OK)
}
