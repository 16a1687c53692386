//! One file a verb.

use std::future::Future;

use crate::args::{Args, Verb};
use crate::exit::{Failure, Outcome, Status};
use crate::guardian::Guardian;
use crate::printer::Printer;

mod acquire;
mod advise;
mod break_;
mod check;
mod completions;
mod ls;
mod man;
mod release;
mod renew;
mod run;
mod schema;
mod show;
mod watch;

/// Does what was asked for.
pub(crate) fn dispatch(args: Args, printer: Printer) -> Outcome {
    let all = &args.everywhere;
    match &args.verb {
        Verb::Run(verb) => {
            let program = run::prepare(verb)?;
            // Before the runtime: no thread exists yet.
            let guardian = Guardian::start()?;
            block_on(run::run(all, verb, &program, guardian, printer))
        }
        Verb::Acquire(verb) => block_on(acquire::acquire(all, verb, printer)),
        Verb::Renew(verb) => block_on(renew::renew(all, verb, printer)),
        Verb::Release(verb) => block_on(release::release(all, verb, printer)),
        Verb::Ls(verb) => block_on(ls::ls(all, verb, printer)),
        Verb::Show(verb) => block_on(show::show(all, verb, printer)),
        Verb::Watch(verb) => block_on(watch::watch(all, verb, printer)),
        Verb::Break(verb) => block_on(break_::break_(all, verb, printer)),
        Verb::Check(_) => block_on(check::check(all, printer)),
        Verb::Advise(verb) => advise::advise(verb, printer),
        Verb::Schema(verb) => schema::schema(verb, printer),
        Verb::Completions(verb) => completions::completions(verb, printer),
        Verb::Man(verb) => man::man(verb, printer),
    }
}

fn block_on(work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|e| Failure::new(Status::SYSTEM, format!("cannot start the runtime: {e}")))?;
    runtime.block_on(work)
}
