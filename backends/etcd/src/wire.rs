//! Our own small client: the few calls a lock needs, over tonic's channel.

pub(crate) mod calls;
pub(crate) mod codec;
pub(crate) mod contention;
pub(crate) mod errors;
pub(crate) mod keepalive;
pub(crate) mod login;
pub(crate) mod members;
pub(crate) mod proto;
pub(crate) mod txn_batch;
pub(crate) mod txn_batcher;
pub(crate) mod watches;
