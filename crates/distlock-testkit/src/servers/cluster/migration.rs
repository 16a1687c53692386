//! Moving one slot from a node to another, step by step.

use distlock_core::Error;

use super::super::Reply;
use super::{Cluster, tell};

/// A slot on its way. Dropping it leaves the slot as it is, between two nodes.
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl<'a> Migration<'a> {
    pub(super) async fn begin(cluster: &'a Cluster, slot: u16, to: usize) -> Result<Self, Error> {
        let from = cluster.serving(slot).await?;
        let this = Self { cluster, slot: slot.to_string(), from, to };
        // The one that takes first: else it would send back whom the other sends on.
        this.set(to, &["IMPORTING", &cluster.ids[from]]).await?;
        this.set(from, &["MIGRATING", &cluster.ids[to]]).await?;
        Ok(this)
    }

    async fn set(&self, node: usize, what: &[&str]) -> Result<(), Error> {
        let mut command = vec!["CLUSTER", "SETSLOT", &self.slot];
        command.extend(what);
        tell(&self.cluster.nodes[node], &command).await.map(drop)
    }

    /// The node that gives the slot away.
    #[must_use]
    pub fn from(&self) -> usize {
        self.from
    }

    /// The node that gets it.
    #[must_use]
    pub fn to(&self) -> usize {
        self.to
    }

    /// Moves the keys that are there now, and says how many. Keys must be UTF-8.
    ///
    /// # Errors
    /// When a node refuses.
    ///
    /// # Cancel safety
    /// Some keys may have moved.
    pub async fn move_keys(&self) -> Result<usize, Error> {
        let (source, target) = (&self.cluster.nodes[self.from], self.cluster.nodes[self.to].addr());
        let (host, port) = (target.ip().to_string(), target.port().to_string());
        let mut moved = 0;
        loop {
            let keys = tell(source, &["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"]).await?;
            let keys: Vec<String> = keys.list().iter().map(Reply::to_string).collect();
            if keys.is_empty() {
                return Ok(moved);
            }
            let mut command = vec!["MIGRATE", &host, &port, "", "0", "5000", "KEYS"];
            command.extend(keys.iter().map(String::as_str));
            tell(source, &command).await?;
            moved += keys.len();
        }
    }

    /// Gives the slot to its new node, and tells every node that runs.
    ///
    /// # Errors
    /// When a node refuses: the old one does while it still has keys of the slot.
    ///
    /// # Cancel safety
    /// Some nodes may know already; they tell the others.
    pub async fn finish(self) -> Result<(), Error> {
        let id = &self.cluster.ids[self.to];
        self.set(self.to, &["NODE", id]).await?;
        self.set(self.from, &["NODE", id]).await?;
        for (i, node) in self.cluster.nodes.iter().enumerate() {
            // Replicas learn it from their primaries, and refuse to be told.
            if ![self.from, self.to].contains(&i)
                && node.is_running()
                && tell(node, &["ROLE"]).await?.to_string().starts_with("[master")
            {
                self.set(i, &["NODE", id]).await?;
            }
        }
        Ok(())
    }
}
