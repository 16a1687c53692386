//! `distlock completions`: from the one definition.

use clap::CommandFactory;

use crate::{Args, Done, Printer, args::Completions};

/// The verb.
pub(crate) fn completions(args: &Completions, printer: Printer) -> Done {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "distlock", &mut text);
    printer.bytes(&text)
}
