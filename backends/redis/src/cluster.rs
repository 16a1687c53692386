//! A cluster: which server serves which slot, and how to follow when slots move.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crc16::{State, XMODEM};
use distlock_core::{BootInstant, Error, Kind, engine};
use redis::Value;
use tokio::sync::oneshot;

use crate::address::Address;
use crate::checked_connection::CheckedConnection;
use crate::connection::{Call, Connection, Fault};
use crate::errors;
use crate::keys::PREFIX;
use crate::primary::{PrimaryAddress, ask_all};
use crate::reconnect::{Reconnecting, Shared};
use crate::reply_cursor::ReplyCursor;

const SLOTS: u16 = 16384;
/// How often a call is led on to another server before it fails.
const REDIRECTIONS: u32 = 8;
/// How often redirections may have the whole map read anew: each corrects its own slot by itself.
const MOVED: Duration = Duration::from_secs(1);
/// How long to wait while the keys of a lock are on two servers at once.
const MOVING: Duration = Duration::from_millis(20);

/// The slot of a key: of what stands between its first pair of braces.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|b| *b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let len = rest.iter().position(|b| *b == b'}').filter(|len| *len > 0)?;
        Some(&rest[..len])
    });
    State::<XMODEM>::calculate(tag.unwrap_or(key)) % SLOTS
}

/// The servers of a cluster.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    seeds: Vec<Address>,
    session: String,
    map: RwLock<Map>,
    /// When the map was last read, and whether that failed: callers that waited for it share the error.
    read: tokio::sync::Mutex<Option<(BootInstant, Result<(), Error>)>>,
    count: AtomicU32,
    /// When a redirection last had the map read, in nanoseconds since boot.
    led: AtomicU64,
}

#[derive(Default)]
struct Map {
    /// The primary of each slot.
    slots: Vec<Option<Address>>,
    nodes: HashMap<Address, Arc<Reconnecting>>,
}

impl Cluster {
    pub(crate) fn new(shared: Arc<Shared>, seeds: Vec<Address>, session: String) -> Arc<Self> {
        let map = Map { slots: vec![None; SLOTS.into()], nodes: HashMap::new() };
        let (map, read, count) = (RwLock::new(map), Default::default(), AtomicU32::new(0));
        let led = AtomicU64::new(0);
        Arc::new(Self { shared, seeds, session, map, read, count, led })
    }

    fn map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a script at the primary of a slot, and says where it ran. The call is made for each
    /// server it comes to, because what tells us our turn differs from server to server, and one
    /// may not be asked at all: then there is no answer.
    pub(crate) async fn play(
        self: &Arc<Self>,
        slot: u16,
        make: impl Fn(&CheckedConnection) -> Option<Call>,
    ) -> Result<(Option<Value>, Arc<CheckedConnection>), Error> {
        let clock = &self.shared.clock;
        let patience = clock.now().plus(self.shared.options.timeout);
        let (mut to, mut asking, mut led) = (None::<Address>, false, 0);
        let mut reread = false;
        loop {
            let node = match to.take() {
                Some(address) => self.node(&address),
                None => self.serving(slot).await?,
            };
            let (node, link) = self.reach(slot, node).await?;
            let Some(call) = make(&link) else { return Ok((None, link)) };
            let fault = match run(&link, &call, asking).await {
                Ok(value) => return Ok((Some(value), link)),
                Err(fault) => fault,
            };
            asking = fault.code() == "ASK";
            match fault.code() {
                "ASK" => to = target(&fault, &link.address),
                "MOVED" => {
                    to = target(&fault, &link.address);
                    self.moved(slot, to.as_ref());
                }
                // It is cut off, or its slot is served by nobody that it knows of: the others may
                // know better.
                "CLUSTERDOWN" if !reread => {
                    reread = true;
                    let read = self.read_map(clock.now()).await;
                    if read.is_err() || Arc::ptr_eq(&self.serving(slot).await?, &node) {
                        return Err(fault.told());
                    }
                }
                // The keys of the lock are on two servers: not for long.
                "TRYAGAIN" if clock.now() < patience => {
                    clock.sleep(MOVING).await;
                    continue;
                }
                _ => {
                    node.judge(&link, &fault);
                    return Err(fault.told());
                }
            }
            led += 1;
            if led == REDIRECTIONS {
                return Err(circles(slot));
            }
        }
    }

    /// The connection to the primary of a slot.
    pub(crate) async fn link(self: &Arc<Self>, slot: u16) -> Result<Arc<CheckedConnection>, Error> {
        let node = self.serving(slot).await?;
        Ok(self.reach(slot, node).await?.1)
    }

    /// Connects to a server for a slot's sake. When it cannot be reached, its replica may have
    /// taken over meanwhile: the others know.
    async fn reach(
        self: &Arc<Self>,
        slot: u16,
        node: Arc<Reconnecting>,
    ) -> Result<(Arc<Reconnecting>, Arc<CheckedConnection>), Error> {
        let trouble = match node.link().await {
            Ok(link) => return Ok((node, link)),
            Err(e) if e.kind() == Kind::Credentials => return Err(e),
            Err(e) => e,
        };
        if self.read_map(self.shared.clock.now()).await.is_err() {
            return Err(trouble);
        }
        let next = self.serving(slot).await?;
        if Arc::ptr_eq(&next, &node) {
            return Err(trouble);
        }
        let link = next.link().await?;
        Ok((next, link))
    }

    /// The primary of a slot, as far as known.
    async fn serving(self: &Arc<Self>, slot: u16) -> Result<Arc<Reconnecting>, Error> {
        for again in [false, true] {
            // In a statement of its own: the map must be free again when a node is added to it.
            let address = self.map().slots[usize::from(slot)].clone();
            if let Some(address) = address {
                return Ok(self.node(&address));
            }
            if !again {
                self.read_map(self.shared.clock.now()).await?;
            }
        }
        Err(Error::new(Kind::Unreachable, format!("no server of the cluster serves slot {slot}"))
            .with_hint("see CLUSTER INFO: a primary and its replicas may be down"))
    }

    /// Which server keeps a slot, as far as is known without asking: servers that fail apart have
    /// different numbers.
    pub(crate) fn shard(&self, slot: u16) -> u64 {
        let map = self.map();
        let mut hasher = DefaultHasher::new();
        map.slots[usize::from(slot)].hash(&mut hasher);
        hasher.finish()
    }

    /// The primary of a slot, if known without asking.
    pub(crate) fn known(self: &Arc<Self>, slot: u16) -> Option<Arc<Reconnecting>> {
        let address = self.map().slots[usize::from(slot)].clone()?;
        Some(self.node(&address))
    }

    /// A primary, connected to or not.
    pub(crate) fn node(self: &Arc<Self>, address: &Address) -> Arc<Reconnecting> {
        if let Some(node) = self.map().nodes.get(address) {
            return node.clone();
        }
        let make = || {
            // A channel for each server: a message reaches subscribers at every server, and would
            // otherwise come once from each.
            let n = self.count.fetch_add(1, Ordering::Relaxed);
            let via = format!("{PREFIX}s:{}:{n}", self.session);
            let (weak, at) = (Arc::downgrade(self), address.clone());
            let marker = Box::new(move || weak.upgrade()?.marker(&at));
            Reconnecting::new(
                self.shared.clone(),
                PrimaryAddress::Fixed(address.clone()),
                via,
                marker,
                true,
            )
        };
        self.map_mut().nodes.entry(address.clone()).or_insert_with(make).clone()
    }

    /// The key of the quarantine's marker: the first of a row whose slot this server serves, so
    /// that all clients, and the replica that takes over, find the same. A server that is only
    /// about to get its first slot has none.
    fn marker(&self, address: &Address) -> Option<String> {
        let map = self.map();
        let serves =
            |key: &String| map.slots[usize::from(slot(key.as_bytes()))].as_ref() == Some(address);
        (0..100_000u32).map(|n| format!("{PREFIX}epoch:{{{n}}}")).find(serves)
    }

    /// Reads the map and connects to one primary that answers: with the others down, their slots
    /// fail, not the store.
    pub(crate) async fn greet(self: &Arc<Self>) -> Result<(), Error> {
        let mut trouble = Error::new(Kind::Unreachable, "no primary of the cluster answers");
        for node in self.primaries().await? {
            match node.link().await {
                Ok(_) => return Ok(()),
                Err(e) => trouble = e,
            }
        }
        Err(trouble)
    }

    /// Every primary.
    pub(crate) async fn primaries(self: &Arc<Self>) -> Result<Vec<Arc<Reconnecting>>, Error> {
        self.read_map(self.shared.clock.now()).await?;
        let mut addresses: Vec<Address> = self.map().slots.iter().flatten().cloned().collect();
        addresses.sort_by_key(ToString::to_string);
        addresses.dedup();
        Ok(addresses.iter().map(|address| self.node(address)).collect())
    }

    fn moved(self: &Arc<Self>, slot: u16, to: Option<&Address>) {
        self.map_mut().slots[usize::from(slot)] = to.cloned();
        let now = self.shared.clock.now();
        // One reading for a crowd of redirections.
        let before = BootInstant::from_nanos(self.led.load(Ordering::Acquire));
        if now.since(before) < MOVED
            || self
                .led
                .compare_exchange(
                    before.as_nanos(),
                    now.as_nanos(),
                    Ordering::AcqRel,
                    Ordering::Acquire,
                )
                .is_err()
        {
            return;
        }
        let cluster = self.clone();
        engine::spawn(async move {
            if let Err(e) = cluster.read_map(now).await {
                tracing::debug!(error = %e, "the map of the cluster cannot be read");
            }
        });
    }

    /// Reads the map anew unless that has been done since `asked`.
    pub(crate) async fn read_map(self: &Arc<Self>, asked: BootInstant) -> Result<(), Error> {
        let (cluster, (tx, rx)) = (self.clone(), oneshot::channel());
        engine::spawn(async move { drop(tx.send(cluster.read_map_here(asked).await)) });
        rx.await.unwrap_or_else(|_| Err(Error::new(Kind::Unreachable, "the map was not read")))
    }

    async fn read_map_here(self: &Arc<Self>, asked: BootInstant) -> Result<(), Error> {
        let mut read = self.read.lock().await;
        if let Some((at, how)) = &*read
            && *at >= asked
        {
            return how.clone();
        }
        let how = self.ask_all().await;
        *read = Some((self.shared.clock.now(), how.clone()));
        how
    }

    /// Reads the map over the connections that there are, if most of the servers known answer there,
    /// else from everybody.
    async fn ask_all(self: &Arc<Self>) -> Result<(), Error> {
        let (linked, known) = {
            let map = self.map();
            let linked = map.nodes.iter().filter(|(_, node)| node.current().is_some());
            (linked.map(|(a, _)| a.clone()).collect::<HashSet<_>>(), map.nodes.len())
        };
        let (mut latest, views, mut trouble) = self.latest(linked).await;
        if 2 * views <= known {
            let known: HashSet<_> = self.map().nodes.keys().chain(&self.seeds).cloned().collect();
            (latest, _, trouble) = self.latest(known).await;
        }
        let Some(View { slots, .. }) = latest else { return Err(trouble) };
        let mut map = self.map_mut();
        map.nodes.retain(|a, _| slots.iter().flatten().any(|s| s == a));
        map.slots = slots;
        Ok(())
    }

    /// The view of the server that saw the latest election, how many said theirs, and why others did
    /// not.
    async fn latest(self: &Arc<Self>, servers: HashSet<Address>) -> (Option<View>, usize, Error) {
        let asking = servers.into_iter().map(|address| {
            let cluster = self.clone();
            async move { cluster.ask(&address).await }
        });
        let Shared { options, clock, .. } = &*self.shared;
        let mut trouble = Error::new(Kind::Unreachable, "no server of the cluster answers")
            .with_hint("see whether its servers run and can be reached");
        let (mut latest, mut views) = (None::<View>, 0);
        for answer in ask_all(asking, clock, options.timeout, |_| true).await {
            views += usize::from(answer.is_ok());
            match answer {
                Ok(view) if latest.as_ref().is_some_and(|l| view.epoch <= l.epoch) => {}
                Ok(view) => latest = Some(view),
                Err(e) => trouble = e,
            }
        }
        (latest, views, trouble)
    }

    /// How one server sees the cluster: over the connection that there is, if there is one.
    async fn ask(&self, address: &Address) -> Result<View, Error> {
        let Shared { credentials, options, clock, .. } = &*self.shared;
        let open = self.map().nodes.get(address).and_then(|node| node.current());
        let made;
        let wire = match &open {
            Some(link) => &link.wire,
            None => {
                made = Connection::open(address, credentials, clock, options.timeout, None).await?;
                &made
            }
        };
        let at = |e: Error| e.store(format!("redis at {address}"));
        let [mut map, mut info] = [redis::cmd("CLUSTER"), redis::cmd("CLUSTER")];
        let (map, info) = (map.arg("SLOTS"), info.arg("INFO"));
        let (map, info) = tokio::join!(wire.send(map), wire.send(info));
        let map = map.map_err(|fault| at(not_a_cluster(&fault)))?;
        Ok(View { epoch: info.map_or(0, |info| epoch(&info)), slots: slots(&map, address) })
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        self.map_mut().nodes.drain().for_each(|(_, node)| node.close());
    }
}

/// How one server sees the cluster.
struct View {
    /// Counts elections: one that was cut off has an older view, and a lower number.
    epoch: u64,
    slots: Vec<Option<Address>>,
}

/// Reads the answer of `CLUSTER INFO`.
fn epoch(info: &Value) -> u64 {
    let text: String = redis::from_redis_value_ref(info).unwrap_or_default();
    let epoch = text.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    epoch.and_then(|epoch| epoch.trim().parse().ok()).unwrap_or(0)
}

/// Runs a call. While the slot moves, keys that do not exist count as moved already, and most keys
/// of a lock exist only while somebody waits: it is then asked for with those that matter alone.
async fn run(link: &CheckedConnection, call: &Call, asking: bool) -> Result<Value, Fault> {
    let mut answer = link.wire.run(call, asking).await;
    for fewer in call.fewer() {
        match answer {
            Err(fault) if fault.code() == "TRYAGAIN" => {}
            settled => return settled,
        }
        answer = link.wire.run(&fewer, asking).await;
    }
    answer
}

fn circles(slot: u16) -> Error {
    Error::new(Kind::Unreachable, format!("the cluster leads in circles looking for slot {slot}"))
        .with_hint("its nodes disagree on who serves it: see CLUSTER SLOTS at each of them")
}

fn not_a_cluster(fault: &Fault) -> Error {
    let told = fault.told();
    match told.message().contains("cluster support disabled") {
        true => errors::not_in_cluster(),
        false => told,
    }
}

/// Reads the answer of `CLUSTER SLOTS`: first, last, primary, replicas.
fn slots(answer: &Value, asked: &Address) -> Vec<Option<Address>> {
    let mut slots = vec![None; SLOTS.into()];
    for range in ReplyCursor::of(answer).map_or(&[][..], |ranges| ranges.0) {
        let Some((first, last, primary)) = range_of(range, asked) else { continue };
        slots.iter_mut().take(last + 1).skip(first).for_each(|slot| *slot = Some(primary.clone()));
    }
    slots
}

fn range_of(range: &Value, asked: &Address) -> Option<(usize, usize, Address)> {
    let mut range = ReplyCursor::of(range)?;
    let (first, last) = (range.number()?.try_into().ok()?, range.number()?.try_into().ok()?);
    let mut primary = ReplyCursor::of(range.next()?)?;
    let host: String = redis::from_redis_value_ref(primary.next()?).unwrap_or_default();
    Some((first, last, at(&host, primary.count()?.try_into().unwrap_or_default(), asked)))
}

/// A server that does not know its own name means the one by which it was asked.
fn at(host: &str, port: u16, asked: &Address) -> Address {
    match (host, asked) {
        ("" | "?", Address::Tcp { host, .. }) => Address::Tcp { host: host.clone(), port },
        _ => Address::Tcp { host: host.to_owned(), port },
    }
}

fn target(fault: &Fault, asked: &Address) -> Option<Address> {
    let Fault::Redis(e) = fault else { return None };
    let (node, _) = e.redirect_node()?;
    let (host, port) = node.rsplit_once(':')?;
    Some(at(host.trim_matches(['[', ']']), port.parse().ok()?, asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_is_of_the_first_tag() {
        // From the specification of Redis Cluster.
        assert_eq!(State::<XMODEM>::calculate(b"123456789"), 0x31C3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), State::<XMODEM>::calculate(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"dl:{:a}:q"), slot(b"dl:{:a}"));
    }
}
