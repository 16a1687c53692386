//! `distlock man`: the manual, from the one definition.

use clap::CommandFactory;
use clap_mangen::Man as Page;

use crate::{Args, Done, Failure, Printer, Status, args::Man};

/// The verb.
pub(crate) fn man(args: &Man, printer: Printer) -> Done {
    let mut command = Args::command();
    // Gives the verbs the options that are taken everywhere.
    command.build();
    let command = match &args.verb {
        None => command,
        Some(verb) => command.find_subcommand(verb).cloned().ok_or_else(|| {
            Failure::new(Status::USAGE, format!("there is no verb {verb:?}"))
                .hint("`distlock --help` lists them")
        })?,
    };
    let mut text = Vec::new();
    Page::new(command)
        .render(&mut text)
        .map_err(|e| Failure::new(Status::INTERNAL, format!("cannot make the page: {e}")))?;
    printer.bytes(&text)
}
