//! Calls on a worker.

/// A call on a worker: what it needs of its surroundings, and what it does on a connection. It may be
/// done twice, so each time has its own.
macro_rules! call {
    ($worker:expr, [$($kept:ident),*], $conn:ident, $call:expr) => {
        $worker.call(move |$conn| {
            $(let $kept = $kept.clone();)*
            Box::pin(async move { $call.await.map_err($crate::errors::trouble) })
        })
    };
}

/// The same with a call of `$again` before it is done a second time.
macro_rules! call_telling {
    ($worker:expr, $again:expr, [$($kept:ident),*], $conn:ident, $call:expr) => {
        $worker.call_telling($again, move |$conn| {
            $(let $kept = $kept.clone();)*
            Box::pin(async move { $call.await.map_err($crate::errors::trouble) })
        })
    };
}

/// The same for what must not be repeated.
macro_rules! call_once {
    ($worker:expr, [$($kept:ident),*], $conn:ident, $call:expr) => {
        $worker.call_once(move |$conn| {
            $(let $kept = $kept.clone();)*
            Box::pin(async move { $call.await.map_err($crate::errors::trouble) })
        })
    };
}
pub(crate) use {call, call_once, call_telling};
