//! Our own small client: the few calls a lock needs, over tonic's channel.

pub(crate) mod beats;
pub(crate) mod calm;
pub(crate) mod codec;
pub(crate) mod link;
pub(crate) mod login;
pub(crate) mod nodes;
pub(crate) mod party;
pub(crate) mod proto;
pub(crate) mod together;
pub(crate) mod trouble;
pub(crate) mod watches;
