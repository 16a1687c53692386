//! A proof of holding, to be put into one's own transaction at the store that keeps the lock.

/// What must still be so at the store for a lock to be held.
///
/// A fencing token protects any resource that remembers the highest one it has seen. Where the
/// resource is the very store that keeps the lock, a proof does better: put it as a condition into
/// your own transaction, and the store itself refuses the write once the lock is gone, with no
/// clock involved.
///
/// | store | condition |
/// |---|---|
/// | etcd | a transaction's compare: the create revision of `key` equals `version` |
/// | ZooKeeper | a `check` of the path `key` with `version` as the first operation of a `multi` |
///
/// It says nothing about the moment after the transaction, and nothing to another store.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Proof {
    /// The record that exists as long as the lock is held: a key or a path.
    pub key: String,
    /// What the store compares with it.
    pub version: i64,
}
