//! Calls on a lane.

/// A call on a lane: what it needs of its surroundings, and what it does on a connection. It may be
/// done twice, so each time has its own.
macro_rules! call {
    ($lane:expr, [$($kept:ident),*], $conn:ident, $call:expr) => {
        $lane.call(move |$conn| {
            $(let $kept = $kept.clone();)*
            Box::pin(async move { $call.await.map_err($crate::errors::trouble) })
        })
    };
}

/// The same with a call of `$again` before it is done a second time.
macro_rules! call_telling {
    ($lane:expr, $again:expr, [$($kept:ident),*], $conn:ident, $call:expr) => {
        $lane.call_telling($again, move |$conn| {
            $(let $kept = $kept.clone();)*
            Box::pin(async move { $call.await.map_err($crate::errors::trouble) })
        })
    };
}

/// The same for what must not be repeated.
macro_rules! call_once {
    ($lane:expr, [$($kept:ident),*], $conn:ident, $call:expr) => {
        $lane.call_once(move |$conn| {
            $(let $kept = $kept.clone();)*
            Box::pin(async move { $call.await.map_err($crate::errors::trouble) })
        })
    };
}
pub(crate) use {call, call_once, call_telling};
