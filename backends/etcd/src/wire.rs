//! Our own small client: the few calls a lock needs, over tonic's channel.

pub(crate) mod grpc;
pub(crate) mod keepalive;
pub(crate) mod link;
pub(crate) mod login;
pub(crate) mod members;
pub(crate) mod merge_hint;
pub(crate) mod proto;
pub(crate) mod txn_batch;
pub(crate) mod txn_batcher;
pub(crate) mod watches;
