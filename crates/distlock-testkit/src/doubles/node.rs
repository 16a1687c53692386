//! The specification as a node: [`NodeState`] behind a mutex, in this process alone.
//!
//! The oracle that other nodes are compared with, and what the driver's own tests run on. It can
//! be told to fail, to fall silent, to answer late and to lose its data.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock_core::backend::{Event, Key, StoreInfo};
use distlock_core::capability::{Expiry, Family, Order, Reentry, Survives, WakeUp};
use distlock_core::info::Query;
use distlock_core::lease::{EventSink, Wake};
use distlock_core::quorum::{
    Ballot, Bid, Commit, Committed, Generation, Heal, NodeDue, NodeKept, NodeOp, NodeReply,
    NodeRules, NodeState, QuorumNode, Round, Vote,
};
use distlock_core::state::{Effects, Micros, Now};
use distlock_core::{
    Capability, Clock, Error, Fence, Force, Forced, FullName, Kind, LockInfo, LossReason, Released,
    ReqId, Token, Ttl, simulation,
};

use super::Fault;

static CAPABILITY: Capability = Capability {
    store: "quorum of memory",
    url: "",
    scope: "tasks of one process",
    family: Family::Quorum,
    fence: Fence::Clocked,
    expiry: Expiry::Ttl,
    ttl_min: Ttl::MIN.get(),
    ttl_max: Ttl::MAX.get(),
    ttl_step: Duration::from_micros(1),
    restart: Survives::Ends,
    failover: Survives::NotApplicable,
    partition: Survives::Yes,
    order: Order::Bounded,
    reentry: Reentry::Client,
    shared: false,
    permits: false,
    detach: true,
    force: true,
    lock_delay: false,
    handover: false,
    linger: false,
    wake: WakeUp::Push,
    drift_percent: 10,
    drift_floor: Duration::from_millis(2),
    wall_witness: true,
    notes: &["For tests: everything is gone when the process ends."],
};

static PLAIN: Capability = Capability {
    store: "quorum of memory (plain)",
    fence: Fence::Unordered,
    order: Order::None,
    detach: false,
    wake: WakeUp::Poll,
    ..CAPABILITY
};

/// A node in memory. Clones are clients of the same node.
pub struct MemoryNode {
    shared: Arc<Shared>,
    /// The clock of this client's host.
    clock: Clock,
    via: String,
    /// Counts this client's connections.
    link: AtomicU64,
}

struct Shared {
    site: String,
    clock: Clock,
    plain: bool,
    /// How far the node's wall is from the machine's, in microseconds.
    skew: AtomicI64,
    /// Counts its restarts.
    starts: AtomicU64,
    table: Mutex<Table>,
    fault: Mutex<Fault>,
    sink: Mutex<BTreeMap<String, EventSink>>,
}

/// Every so many calls, locks nobody needs any more are forgotten.
const SWEEP_EVERY: u64 = 256;

#[derive(Default)]
struct Table {
    locks: BTreeMap<FullName, NodeState>,
    /// At least as high as every token and generation of what was forgotten.
    floor: u64,
    rules: NodeRules,
    calls: u64,
    renewals: Vec<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryNode {
    /// A node of its own.
    #[must_use]
    pub fn new(site: impl Into<String>, clock: Clock) -> Self {
        Self::build(site.into(), clock, false)
    }

    /// A node of the textbook recipe: no counter, no line, no tombstones.
    #[must_use]
    pub fn plain(site: impl Into<String>, clock: Clock) -> Self {
        Self::build(site.into(), clock, true)
    }

    fn build(site: String, clock: Clock, plain: bool) -> Self {
        let mut table = Table::default();
        if plain {
            table.rules.spent_cap = 0;
        }
        let shared = Shared {
            site,
            clock,
            plain,
            skew: AtomicI64::new(0),
            starts: AtomicU64::new(0),
            table: Mutex::new(table),
            fault: Mutex::default(),
            sink: Mutex::default(),
        };
        let clock = shared.clock.clone();
        let (shared, via, link) = (Arc::new(shared), String::new(), AtomicU64::new(0));
        Self { shared, clock, via, link }.client()
    }

    /// The same node by other rules.
    #[must_use]
    pub fn with_rules(self, rules: NodeRules) -> Self {
        lock(&self.shared.table).rules = rules;
        self
    }

    /// Another client of the same node.
    #[must_use]
    pub fn client(&self) -> Self {
        self.client_on(self.shared.clock.clone())
    }

    /// Another client of the same node, on a host with a clock of its own.
    #[must_use]
    pub fn client_on(&self, clock: Clock) -> Self {
        let via = ReqId::random().to_string();
        Self { shared: self.shared.clone(), clock, via, link: AtomicU64::new(0) }
    }

    /// Makes it misbehave, for all its clients.
    pub fn fault(&self, fault: Fault) {
        *lock(&self.shared.fault) = fault;
    }

    /// Restarts it without its data; nothing is granted for `quarantine`.
    pub fn lose_data(&self, quarantine: Duration) {
        let mut table = lock(&self.shared.table);
        table.locks.clear();
        table.rules.opens = Micros(self.shared.clock.now().as_micros()).plus(quarantine);
        self.shared.starts.fetch_add(1, Ordering::AcqRel);
    }

    /// Forgets one lock, as an operator who deletes its record would.
    pub fn wipe(&self, name: &FullName) {
        lock(&self.shared.table).locks.remove(name);
    }

    /// Sets how far its wall is from the machine's, in microseconds.
    pub fn skew(&self, micros: i64) {
        self.shared.skew.store(micros, Ordering::Release);
    }

    /// As if the connection had been made anew.
    pub fn reconnect(&self) {
        self.link.fetch_add(1, Ordering::AcqRel);
    }

    /// The state of one lock here.
    #[must_use]
    pub fn peek(&self, name: &FullName) -> NodeState {
        lock(&self.shared.table).locks.get(name).cloned().unwrap_or_default()
    }

    /// How many calls it has served.
    #[must_use]
    pub fn calls(&self) -> u64 {
        lock(&self.shared.table).calls
    }

    /// How many holds each renewal call was about.
    #[must_use]
    pub fn renewals(&self) -> Vec<usize> {
        lock(&self.shared.table).renewals.clone()
    }

    /// One call: it travels, is served, and its answer travels back, as the fault has it.
    async fn call<T: Send + 'static>(
        &self,
        work: impl Fn(&Arc<Shared>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let fault = *lock(&self.shared.fault);
        let shared = self.shared.clone();
        fault.call(&self.shared.clock, &self.shared.site, move || work(&shared)).await
    }

    async fn step(&self, name: &FullName, op: NodeOp) -> Result<NodeReply, Error> {
        let name = name.clone();
        self.call(move |shared| shared.step(&name, &op)).await
    }
}

impl Shared {
    fn now(&self) -> Now {
        let wall = self.clock.wall_micros();
        let wall = wall.saturating_add_signed(self.skew.load(Ordering::Acquire));
        Now { lease: Micros(self.clock.now().as_micros()), wall: Micros(wall) }
    }

    fn step(&self, name: &FullName, op: &NodeOp) -> NodeReply {
        let now = self.now();
        let mut table = lock(&self.table);
        table.calls += 1;
        if table.calls.is_multiple_of(SWEEP_EVERY) {
            table.sweep(now.lease);
        }
        let (rules, floor) = (table.rules, table.floor);
        let state = table.locks.entry(name.clone()).or_insert_with(|| NodeState::above(floor));
        let step = state.step(op, now, &rules);
        if let Some(hold) = state.hold.as_mut().filter(|_| self.plain) {
            hold.healed = false;
        }
        drop(table);
        self.deliver(name, step.effects);
        step.reply
    }

    fn deliver(&self, name: &FullName, effects: Effects) {
        let key = |req| Key { lock: name.clone(), req };
        let turns = effects.turns.into_iter().map(|(req, via)| (via, Wake::Turn(req)));
        let contended = effects.contended.into_iter();
        let contended = contended.map(|(r, via)| (via, Wake::Event(Event::Contended(key(r)))));
        let revoked = effects.revoked.into_iter();
        let revoked =
            revoked.map(|(r, via)| (via, Wake::Event(Event::Lost(key(r), LossReason::Revoked))));
        for (via, wake) in turns.chain(contended).chain(revoked) {
            let ear = lock(&self.sink).get(&via).cloned();
            let reaches = matches!(*lock(&self.fault), Fault::None | Fault::Simulated);
            if let Some(ear) = ear.filter(|_| !self.plain && reaches) {
                ear(wake);
            }
        }
    }

    /// What the textbook recipe can say: no base, no generation but the round's.
    fn plainly(&self, vote: Vote, round: Round) -> Vote {
        match vote {
            Vote::Granted { left, .. } if self.plain => Vote::Granted {
                accepted: false,
                base: None,
                generation: Generation(round.0),
                left,
                waiters: 0,
            },
            other => other,
        }
    }
}

impl Table {
    fn sweep(&mut self, now: Micros) {
        let floor = &mut self.floor;
        self.locks.retain(|_, state| {
            let idle = state.is_idle(now);
            if idle {
                *floor = (*floor).max(state.hi).max(state.generation);
            }
            !idle
        });
    }
}

/// An answer to another question would be a fault of the specification.
fn odd(reply: &NodeReply) -> Error {
    Error::new(Kind::Store, format!("an answer to another question: {reply:?}")).unknown()
}

impl QuorumNode for MemoryNode {
    fn info(&self) -> StoreInfo<'_> {
        StoreInfo {
            capability: if self.shared.plain { &PLAIN } else { &CAPABILITY },
            site: &self.shared.site,
            clock: &self.clock,
        }
    }

    fn link(&self) -> u64 {
        self.link.load(Ordering::Acquire) + self.shared.starts.load(Ordering::Acquire)
    }

    async fn propose(&self, bid: &Bid) -> Result<Ballot, Error> {
        let mut bid = bid.clone();
        if self.shared.plain {
            bid.place = None;
        }
        let (round, name) = (bid.round, bid.ask.lock.clone());
        let op = NodeOp::Propose(bid, self.via.clone());
        let work = move |shared: &Arc<Shared>| (shared.step(&name, &op), shared.now().wall);
        match self.call(work).await? {
            (NodeReply::Vote(vote), at) => {
                let at = (!self.shared.plain).then_some(at);
                Ok(Ballot { vote: self.shared.plainly(vote, round), at })
            }
            (other, _) => Err(odd(&other)),
        }
    }

    async fn heal(&self, heals: &[Heal]) -> Vec<Result<Vote, Error>> {
        let mut votes = Vec::with_capacity(heals.len());
        for heal in heals {
            let op = NodeOp::Heal(heal.clone(), self.via.clone());
            votes.push(match self.step(&heal.ask.lock, op).await {
                Ok(NodeReply::Vote(vote)) => Ok(self.shared.plainly(vote, heal.round)),
                Ok(other) => Err(odd(&other)),
                Err(e) => Err(e),
            });
        }
        votes
    }

    async fn commit(&self, commit: &Commit) -> Result<Committed, Error> {
        match self.step(&commit.key.lock, NodeOp::Commit(commit.clone())).await? {
            NodeReply::Committed(committed) => Ok(committed),
            other => Err(odd(&other)),
        }
    }

    async fn renew(&self, due: &[NodeDue]) -> Vec<NodeKept> {
        let (all, plain) = (due.to_vec(), self.shared.plain);
        let work = move |shared: &Arc<Shared>| {
            lock(&shared.table).renewals.push(all.len());
            let renew = |due: NodeDue| {
                // The textbook compares the value alone; its generation says nothing more.
                let generation = due.generation.filter(|_| !plain);
                let (name, quoted) = (due.key.lock.clone(), due.generation);
                let reply = shared.step(&name, &NodeOp::Renew(NodeDue { generation, ..due }));
                (reply, quoted.filter(|_| plain))
            };
            all.iter().cloned().map(renew).collect::<Vec<_>>()
        };
        match self.call(work).await {
            Ok(replies) => replies.into_iter().map(kept).collect(),
            Err(e) => due.iter().map(|_| NodeKept::Unknown(e.clone())).collect(),
        }
    }

    async fn release(&self, key: &Key) -> Result<Released, Error> {
        match self.step(&key.lock, NodeOp::Release(key.req)).await? {
            NodeReply::Released(released) => Ok(released),
            other => Err(odd(&other)),
        }
    }

    async fn cancel(&self, key: &Key, upto: Round) -> Result<(), Error> {
        self.step(&key.lock, NodeOp::Cancel(key.req, upto)).await.map(drop)
    }

    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Error> {
        let query = query.clone();
        self.call(move |shared| {
            let now = shared.now().lease;
            let table = lock(&shared.table);
            let seen = table.locks.iter().filter(|(name, _)| meant(name, &query));
            let limit = match &query {
                Query::Name(_) => 1,
                Query::Prefix { limit, .. } => *limit,
            };
            seen.filter_map(|(name, state)| state.view(name, now)).take(limit).collect()
        })
        .await
    }

    async fn force(
        &self,
        name: &FullName,
        token: Option<Token>,
        how: Force,
    ) -> Result<Forced, Error> {
        match self.step(name, NodeOp::Force(token, how)).await? {
            NodeReply::Forced(forced) => Ok(forced),
            other => Err(odd(&other)),
        }
    }

    fn listen(&self, sink: EventSink) {
        lock(&self.shared.sink).insert(self.via.clone(), simulation::sink(sink));
    }

    async fn close(&self) {
        lock(&self.shared.sink).remove(&self.via);
    }
}

impl Drop for MemoryNode {
    /// Takes effect at once: nothing is told to this client any more.
    fn drop(&mut self) {
        lock(&self.shared.sink).remove(&self.via);
    }
}

fn kept((reply, quoted): (NodeReply, Option<Generation>)) -> NodeKept {
    match reply {
        NodeReply::Kept { generation, left, token, waiters } => {
            let generation = quoted.unwrap_or(generation);
            NodeKept::Held { generation, left, token, waiters }
        }
        NodeReply::Lost(why) => NodeKept::Lost(why),
        other => NodeKept::Unknown(odd(&other)),
    }
}

fn meant(name: &FullName, query: &Query) -> bool {
    match query {
        Query::Name(lock) => lock == name,
        Query::Prefix { space, prefix, after, .. } => {
            name.space == *space
                && name.name.as_str().starts_with(prefix)
                && after.as_ref().is_none_or(|after| name.name > *after)
        }
    }
}
