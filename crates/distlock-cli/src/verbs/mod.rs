//! One file a verb.

use std::future::Future;

use crate::{Args, Failure, Outcome, Printer, Status, args::Verb, guardian::Guardian};

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

/// Does what was asked for. Only `run` has an exit status of its own.
pub(crate) fn dispatch(args: Args, printer: Printer) -> Outcome {
    let all = &args.everywhere;
    match &args.verb {
        Verb::Run(verb) => {
            let program = run::prepare(verb)?;
            // Before the runtime: no thread exists yet.
            let guardian = Guardian::start()?;
            return block_on(run::run(all, verb, &program, guardian, printer));
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
    .map(|()| Status::OK)
}

fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|e| Failure::new(Status::SYSTEM, format!("cannot start the runtime: {e}")))?;
    runtime.block_on(work)
}
