//! Data on stdout, talk on stderr.

use std::io::{self, ErrorKind, IsTerminal, Write};

use serde_json::Value;
use tracing_subscriber::EnvFilter;

use crate::{Done, Everywhere, Failure, Status};

/// Where a verb's words go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    pub(crate) json: bool,
    quiet: bool,
}

impl Printer {
    pub(crate) fn new(args: &Everywhere) -> Self {
        if args.verbose > 0 {
            trace(if args.verbose > 1 { "distlock=trace" } else { "distlock=debug" });
        }
        Self { json: args.json, quiet: args.quiet }
    }

    /// Shows what the library warns of, also without `-v`.
    pub(crate) fn warnings(self) {
        if !self.quiet {
            trace("distlock=warn");
        }
    }

    /// A line of data.
    pub(crate) fn line(self, text: &str) -> Done {
        self.bytes(format!("{text}\n").as_bytes())
    }

    /// A document, when JSON was asked for; else the text.
    pub(crate) fn data(self, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Done {
        if self.json { self.line(&json().to_string()) } else { self.line(&text()) }
    }

    /// Data that is not lines.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Done {
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(unwritten)
    }

    /// Something a person may want to know.
    pub(crate) fn note(self, text: impl AsRef<str>) {
        if !self.quiet {
            say(text.as_ref());
        }
    }

    /// Something that must be said.
    pub(crate) fn warn(self, text: impl AsRef<str>) {
        say(text.as_ref());
    }

    /// Says why it failed and gives the status to exit with. Busy is an answer more than an error,
    /// so `-q` silences it.
    pub(crate) fn failure(self, failure: &Failure) -> Status {
        let silent = self.quiet && failure.status == Status::BUSY;
        if !failure.message.is_empty() && !silent {
            say(&failure.message);
            if let Some(hint) = &failure.hint {
                let _ = writeln!(io::stderr().lock(), "hint: {hint}");
            }
        }
        failure.status
    }
}

fn say(text: &str) {
    // Nobody may be listening: that is no reason to stop.
    let _ = writeln!(io::stderr().lock(), "distlock: {text}");
}

fn unwritten(e: io::Error) -> Failure {
    match e.kind() {
        // The reader has seen enough, as with `| head`.
        ErrorKind::BrokenPipe => Failure::new(Status::signal(13), ""),
        _ => Failure::new(Status::OUTPUT, format!("cannot write to stdout: {e}")),
    }
}

/// The first filter stays.
fn trace(filter: &str) {
    let colour =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let _ = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(io::stderr)
        .with_ansi(colour)
        .try_init();
}
