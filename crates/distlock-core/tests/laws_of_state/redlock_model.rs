//! The tokens of a quorum, against an adversary without a clock: every history up to a bound.
//!
//! Leases may end at any moment (a pause, a clock that jumps), answers may be lost, calls of all
//! clients interleave in every way, and a node may lose its data. The nodes run the product's own
//! [`NodeState::step`]; what the clients do is written here again, because the driver is a web of
//! futures: `Ask` is its poll, `Decide` its choice between one round trip and two, `Write` its
//! write-back, `GiveUp` its undo and its release.
//!
//! Laws: a token is higher than every token granted before its attempt began, and no token is
//! granted twice. With them no resource that compares tokens ever goes back.
//!
//! Nodes are alike, so two worlds that differ only in which node is called which are one: that
//! leaves a sixth of the states with three nodes, and a hundredth with five.
//!
//! Not covered: renewal, healing, tombstones, lines, and late arrivals of calls that were given up.
//! An undo reaches all nodes at once here; where it does not, the lease may end at any moment.

use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use distlock_core::backend::{Ask, Key};
use distlock_core::quorum::{
    Bid, Commit, Committed, Generation, NodeHold, NodeOp, NodePhase, NodeReply, NodeRules,
    NodeState, Round, Vote, Who,
};
use distlock_core::state::{Micros, Now};
use distlock_core::{FullName, Label, Mode, Name, Owner, Patience, ReqId, Token};
use stateright::{Model, Property};

use crate::report::{breaks, holds_at_most};

const TTL: Duration = Duration::from_secs(1);

/// How tokens are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tokens {
    /// Each node counts for itself, and the highest count is the token: the popular idea.
    Counted,
    /// One more than the highest, written back whether or not the lock is still owned.
    WrittenAnyway,
    /// One more than the highest, written back where it is still owned.
    Written,
    /// Proposed with the bid, written back only where that was not accepted: the product's way.
    Proposed,
}

/// What happens to data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Losses {
    /// How many times a node loses its data.
    most: u8,
    /// It then grants nothing until every lease it may have forgotten is over.
    quarantine: bool,
    /// Tokens are never below the node's clock.
    clocked: bool,
    /// An attempt that has taken as long as a lease is given up.
    elapsed_check: bool,
}

const NO_LOSS: Losses = Losses { most: 0, quarantine: false, clocked: false, elapsed_check: false };

#[derive(Clone)]
struct Tokened {
    tokens: Tokens,
    nodes: usize,
    /// How many attempts each client makes.
    attempts: Vec<u8>,
    /// Tokens from one to this are proposed.
    proposals: u8,
    /// Answers may be lost.
    deaf: bool,
    losses: Losses,
}

/// Which attempt of which client.
type Try = (u8, u8);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Node {
    owner: Option<Try>,
    hi: u8,
    /// While it is closed: whose leases may still run, and which attempts were under way.
    closed: Option<(Vec<Try>, Vec<Try>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Idle,
    Asking { asked: u8, granted: u8, accepted: u8, base: u8, proposal: u8 },
    Writing { token: u8, to: u8, asked: u8, wrote: u8 },
    Held,
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    attempt: u8,
    phase: Phase,
    /// The highest token granted before this attempt began.
    before: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    nodes: Vec<Node>,
    clients: Vec<Client>,
    granted: Vec<u8>,
    losses: u8,
    wall: u8,
    fell: bool,
    twice: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Move {
    /// A client begins an attempt with this proposal.
    Start(u8, u8),
    /// A node serves its bid; the answer arrives, or not.
    Ask(u8, u8, bool),
    /// It makes of the answers what they make.
    Decide(u8),
    /// A node serves its write-back; the answer arrives, or not.
    Write(u8, u8, bool),
    /// A majority wrote.
    Grant(u8),
    /// It gives up, or releases: undone at every node.
    GiveUp(u8),
    /// A lease ends.
    Expire(u8),
    /// A node loses its data.
    Lose(u8),
    /// A node's quarantine ends.
    Open(u8),
}

static ASK: LazyLock<Ask> = LazyLock::new(|| Ask {
    lock: FullName { space: Default::default(), name: Name::new("a").expect("a name") },
    req: ReqId::from_bytes([0; 16]),
    owner: Owner::named("o").expect("an owner"),
    mode: Mode::Exclusive,
    ttl: TTL,
    patience: Patience::Never,
    min_hold: Duration::ZERO,
    lock_delay: Duration::ZERO,
    label: Label::new("l"),
    block: NonZeroU32::MIN,
});

/// One ask a client: they are only read.
static ASKS: LazyLock<Vec<Arc<Ask>>> =
    LazyLock::new(|| (0..4).map(|c| Arc::new(Ask { req: req(c), ..ASK.clone() })).collect());

fn req(client: u8) -> ReqId {
    ReqId::from_bytes([client; 16])
}

fn round(attempt: u8) -> Round {
    Round(u64::from(attempt) + 1)
}

fn small(n: u64) -> u8 {
    u8::try_from(n).expect("few tokens")
}

impl Node {
    /// This node as the product knows it. What only replays need is not kept: here nobody repeats.
    fn state(&self) -> NodeState {
        let hold = self.owner.map(|(client, attempt)| NodeHold {
            who: Who {
                req: req(client),
                owner: ASK.owner.clone(),
                label: ASK.label.clone(),
                via: String::new(),
            },
            round: round(attempt),
            generation: Generation(0),
            token: None,
            accepted: false,
            base: 0,
            granted: Micros(0),
            expires: Micros(0).plus(TTL),
            min_hold: Duration::ZERO,
            phase: NodePhase::Held,
            healed: false,
        });
        NodeState { hold, hi: self.hi.into(), ..NodeState::default() }
    }

    fn step(&mut self, op: &NodeOp, wall: u8, rules: &NodeRules) -> NodeReply {
        let mut state = self.state();
        let now = Now { lease: Micros(0), wall: Micros(wall.into()) };
        let reply = state.step(op, now, rules).reply;
        self.hi = small(state.hi);
        let owner = |h: &NodeHold| (h.who.req.as_bytes()[0], small(h.round.0 - 1));
        self.owner = state.hold.as_ref().map(owner);
        reply
    }
}

impl Tokened {
    fn majority(&self) -> u32 {
        u32::try_from(self.nodes / 2 + 1).expect("few nodes")
    }

    /// No proposal is accepted but where proposals are what is tried; otherwise any above what the
    /// node knows.
    fn rules(&self, node: &Node) -> NodeRules {
        NodeRules {
            spent_cap: 0,
            slack: Duration::ZERO,
            ahead: if self.tokens == Tokens::Proposed { TTL } else { Duration::ZERO },
            opens: Micros(u64::from(node.closed.is_some())),
            ..NodeRules::default()
        }
    }

    fn grant(&self, world: &mut World, c: usize, token: u8) {
        world.fell |= token <= world.clients[c].before;
        world.twice |= world.granted.contains(&token);
        world.granted.push(token);
        world.granted.sort_unstable();
        world.clients[c].phase = Phase::Held;
    }

    fn give_up(&self, world: &mut World, c: usize) {
        let attempt = world.clients[c].attempt;
        for node in &mut world.nodes {
            let op = NodeOp::Cancel(req(small(c as u64)), round(attempt));
            let rules = self.rules(node);
            node.step(&op, world.wall, &rules);
        }
        let client = &mut world.clients[c];
        client.attempt += 1;
        client.before = 0;
        let over = client.attempt >= self.attempts[c];
        client.phase = if over { Phase::Done } else { Phase::Idle };
    }

    fn ask(&self, world: &mut World, c: usize, i: usize, heard: bool) {
        let Phase::Asking { mut asked, mut granted, mut accepted, mut base, proposal } =
            world.clients[c].phase
        else {
            return;
        };
        let token = Token::new(u64::from(proposal).max(1)).expect("a token");
        let (ask, round) = (ASKS[c].clone(), round(world.clients[c].attempt));
        let op = NodeOp::Propose(Bid { ask, round, token, place: None }, String::new());
        let rules = self.rules(&world.nodes[i]);
        let reply = world.nodes[i].step(&op, world.wall, &rules);
        asked |= 1 << i;
        if let NodeReply::Vote(Vote::Granted { accepted: yes, base: told, .. }) = reply {
            let mut told = small(told.expect("it counts"));
            if self.tokens == Tokens::Counted {
                told += 1;
                world.nodes[i].hi = told;
            }
            if heard {
                granted |= 1 << i;
                accepted |= u8::from(yes) << i;
                base = base.max(told);
            }
        }
        world.clients[c].phase = Phase::Asking { asked, granted, accepted, base, proposal };
    }

    fn decide(&self, world: &mut World, c: usize) {
        let Phase::Asking { granted, accepted, base, proposal, .. } = world.clients[c].phase else {
            return;
        };
        if self.tokens == Tokens::Counted {
            self.grant(world, c, base);
        } else if accepted.count_ones() >= self.majority() {
            self.grant(world, c, proposal);
        } else {
            let (token, to) = (base + 1, granted);
            world.clients[c].phase = Phase::Writing { token, to, asked: 0, wrote: 0 };
        }
    }

    fn write(&self, world: &mut World, c: usize, i: usize, heard: bool) {
        let Phase::Writing { token, to, mut asked, mut wrote } = world.clients[c].phase else {
            return;
        };
        asked |= 1 << i;
        let key = Key { lock: ASK.lock.clone(), req: req(small(c as u64)) };
        let commit = Commit {
            key,
            round: round(world.clients[c].attempt),
            generation: Generation(0),
            token: Token::new(token.into()).expect("a token"),
        };
        let node = &mut world.nodes[i];
        let stored = if self.tokens == Tokens::WrittenAnyway {
            node.hi = node.hi.max(token);
            node.closed.is_none()
        } else {
            let rules = self.rules(node);
            let reply = node.step(&NodeOp::Commit(commit), world.wall, &rules);
            reply == NodeReply::Committed(Committed::Yes)
        };
        wrote |= u8::from(stored && heard) << i;
        world.clients[c].phase = Phase::Writing { token, to, asked, wrote };
    }

    fn lose(&self, world: &mut World, i: usize) {
        world.losses += 1;
        let mut running: Vec<Try> = world.nodes.iter().filter_map(|n| n.owner).collect();
        running.sort_unstable();
        running.dedup();
        let under_way = |(c, client): (u8, &Client)| {
            let busy = matches!(client.phase, Phase::Asking { .. } | Phase::Writing { .. });
            busy.then_some((c, client.attempt))
        };
        let trying = (0..).zip(&world.clients).filter_map(under_way).collect();
        let closed = self.losses.quarantine.then_some((running, trying));
        world.nodes[i] = Node { owner: None, hi: 0, closed };
    }

    /// As much time as a lease has passed since it closed.
    fn open(&self, world: &mut World, i: usize) {
        let Some((_, trying)) = world.nodes[i].closed.take() else { return };
        if self.losses.elapsed_check {
            for (c, attempt) in trying {
                let client = &world.clients[usize::from(c)];
                let busy = matches!(client.phase, Phase::Asking { .. } | Phase::Writing { .. });
                if client.attempt == attempt && busy {
                    self.give_up(world, c.into());
                }
            }
        }
        if self.losses.clocked {
            // Its clock is past every token that is known anywhere. Not past every proposal: one
            // that only the lost node had accepted may be ahead of all clocks.
            let known = world.nodes.iter().map(|n| n.hi).chain(world.granted.iter().copied());
            world.wall = world.wall.max(known.max().unwrap_or(0) + 1);
        }
    }
}

impl Phase {
    /// What the client knows of each node, a bit a node.
    fn bits(&mut self) -> Option<[&mut u8; 3]> {
        match self {
            Phase::Asking { asked, granted, accepted, .. } => Some([asked, granted, accepted]),
            Phase::Writing { to, asked, wrote, .. } => Some([to, asked, wrote]),
            Phase::Idle | Phase::Held | Phase::Done => None,
        }
    }
}

impl World {
    /// The same world with its nodes in order, whatever they were called.
    fn sorted(mut self) -> Self {
        let mut order: Vec<_> = (0..self.nodes.len()).collect();
        let mut known = vec![0u16; order.len()];
        for client in &self.clients {
            let mut phase = client.phase;
            for bits in phase.bits().into_iter().flatten() {
                known
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, k)| *k = *k << 1 | u16::from(*bits >> i & 1));
            }
        }
        order.sort_by_key(|&i| (&self.nodes[i], known[i]));
        if order.is_sorted() {
            return self;
        }
        for client in &mut self.clients {
            for bits in client.phase.bits().into_iter().flatten() {
                *bits =
                    (0..).zip(&order).fold(0, |new, (to, from)| new | (*bits >> from & 1) << to);
            }
        }
        self.nodes = order.into_iter().map(|i| self.nodes[i].clone()).collect();
        self
    }
}

impl Model for Tokened {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            nodes: vec![Node { owner: None, hi: 0, closed: None }; self.nodes],
            clients: vec![
                Client { attempt: 0, phase: Phase::Idle, before: 0 };
                self.attempts.len()
            ],
            granted: Vec::new(),
            losses: 0,
            wall: 0,
            fell: false,
            twice: false,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.fell || world.twice {
            return;
        }
        let heard: &[bool] = if self.deaf { &[true, false] } else { &[true] };
        let nodes = || (0..).take(self.nodes);
        for (c, client) in (0u8..).zip(&world.clients) {
            match client.phase {
                Phase::Idle if self.tokens == Tokens::Proposed => {
                    moves.extend((1..=self.proposals).map(|p| Move::Start(c, p)));
                }
                Phase::Idle => moves.push(Move::Start(c, 0)),
                Phase::Asking { asked, granted, .. } => {
                    for i in nodes().filter(|i| asked & (1 << i) == 0) {
                        moves.extend(heard.iter().map(|h| Move::Ask(c, i, *h)));
                    }
                    if granted.count_ones() >= self.majority() {
                        moves.push(Move::Decide(c));
                    }
                    if asked != 0 {
                        moves.push(Move::GiveUp(c));
                    }
                }
                Phase::Writing { to, asked, wrote, .. } => {
                    for i in nodes().filter(|i| to & !asked & (1 << i) != 0) {
                        moves.extend(heard.iter().map(|h| Move::Write(c, i, *h)));
                    }
                    if wrote.count_ones() >= self.majority() {
                        moves.push(Move::Grant(c));
                    }
                    moves.push(Move::GiveUp(c));
                }
                Phase::Held => moves.push(Move::GiveUp(c)),
                Phase::Done => {}
            }
        }
        for (i, node) in (0u8..).zip(&world.nodes) {
            if node.owner.is_some() {
                moves.push(Move::Expire(i));
            }
            if world.losses < self.losses.most && node.closed.is_none() {
                moves.push(Move::Lose(i));
            }
            if let Some((running, _)) = &node.closed
                && !world.nodes.iter().any(|n| n.owner.is_some_and(|o| running.contains(&o)))
            {
                moves.push(Move::Open(i));
            }
        }
    }

    fn next_state(&self, last: &World, next: Move) -> Option<World> {
        let mut world = last.clone();
        match next {
            Move::Start(c, proposal) => {
                let before = world.granted.last().copied().unwrap_or(0);
                let client = &mut world.clients[usize::from(c)];
                client.before = before;
                client.phase =
                    Phase::Asking { asked: 0, granted: 0, accepted: 0, base: 0, proposal };
            }
            Move::Ask(c, i, heard) => self.ask(&mut world, c.into(), i.into(), heard),
            Move::Decide(c) => self.decide(&mut world, c.into()),
            Move::Write(c, i, heard) => self.write(&mut world, c.into(), i.into(), heard),
            Move::Grant(c) => {
                if let Phase::Writing { token, .. } = world.clients[usize::from(c)].phase {
                    self.grant(&mut world, c.into(), token);
                }
            }
            Move::GiveUp(c) => self.give_up(&mut world, c.into()),
            Move::Expire(i) => world.nodes[usize::from(i)].owner = None,
            Move::Lose(i) => self.lose(&mut world, i.into()),
            Move::Open(i) => self.open(&mut world, i.into()),
        }
        Some(world.sorted())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("tokens rise", |_, w: &World| !w.fell),
            Property::always("tokens are unique", |_, w: &World| !w.twice),
            Property::sometimes("somebody is granted", |_, w: &World| !w.granted.is_empty()),
            Property::sometimes("and somebody else", |_, w: &World| w.granted.len() >= 2),
        ]
    }
}

fn model(tokens: Tokens, nodes: usize, attempts: &[u8]) -> Tokened {
    let proposals = if tokens == Tokens::Proposed { 2 } else { 0 };
    let attempts = attempts.to_vec();
    Tokened { tokens, nodes, attempts, proposals, deaf: false, losses: NO_LOSS }
}

const VOLATILE: Losses = Losses { most: 1, quarantine: true, clocked: true, elapsed_check: true };

/// Small enough for every run.
const CI: usize = 12_000_000;
/// Some gigabytes and minutes.
const FULL: usize = 400_000_000;

fn holds(name: &str, model: Tokened, states: usize) {
    holds_at_most(&format!("redlock {name}"), model, states, CI);
}

fn holds_fully(name: &str, model: Tokened, states: usize) {
    holds_at_most(&format!("redlock {name}"), model, states, FULL);
}

#[test]
fn model_redlock_written_back() {
    holds("C 2+1", model(Tokens::Written, 3, &[2, 1]), 183_471);
}

#[test]
fn model_redlock_written_back_deaf() {
    holds("C 1+1 deaf", Tokened { deaf: true, ..model(Tokens::Written, 3, &[1, 1]) }, 68_307);
}

#[test]
fn model_redlock_proposed() {
    holds("D 2+1", model(Tokens::Proposed, 3, &[2, 1]), 424_207);
}

#[test]
fn model_redlock_proposed_deaf() {
    let model = Tokened { deaf: true, proposals: 3, ..model(Tokens::Proposed, 3, &[1, 1]) };
    holds("D 1+1 deaf, proposals to 3", model, 183_850);
}

#[test]
fn model_redlock_written_back_with_losses() {
    let losses = Losses { elapsed_check: false, ..VOLATILE };
    holds("C 1+1, a loss", Tokened { losses, ..model(Tokens::Written, 3, &[1, 1]) }, 187_037);
}

#[test]
fn model_redlock_proposed_with_losses() {
    holds(
        "D 1+1, a loss",
        Tokened { losses: VOLATILE, ..model(Tokens::Proposed, 3, &[1, 1]) },
        334_545,
    );
}

#[test]
#[ignore = "cargo xtask models --full"]
fn model_redlock_full_written_back_three_clients() {
    holds_fully("C 1+1+1", model(Tokens::Written, 3, &[1, 1, 1]), 4_857_109);
}

#[test]
#[ignore = "cargo xtask models --full"]
fn model_redlock_full_written_back_with_losses() {
    let losses = Losses { elapsed_check: false, ..VOLATILE };
    let model = Tokened { losses, ..model(Tokens::Written, 3, &[2, 1]) };
    holds_fully("C 2+1, a loss", model, 2_434_565);
}

#[test]
#[ignore = "cargo xtask models --full"]
fn model_redlock_full_proposed_with_losses() {
    let model = Tokened { losses: VOLATILE, ..model(Tokens::Proposed, 3, &[2, 1]) };
    holds_fully("D 2+1, a loss", model, 7_294_461);
}

#[test]
fn model_redlock_written_back_again_deaf() {
    let model = Tokened { deaf: true, ..model(Tokens::Written, 3, &[2, 1]) };
    holds("C 2+1 deaf", model, 741_520);
}

#[test]
#[ignore = "cargo xtask models --full"]
fn model_redlock_full_written_back_twice_deaf() {
    let model = Tokened { deaf: true, ..model(Tokens::Written, 3, &[2, 2]) };
    holds_fully("C 2+2 deaf", model, 5_977_691);
}

#[test]
fn model_redlock_written_back_five_nodes() {
    holds("C 1+1, five nodes", model(Tokens::Written, 5, &[1, 1]), 630_179);
}

#[test]
#[ignore = "cargo xtask models --full"]
fn model_redlock_full_proposed_three_clients() {
    holds_fully("D 1+1+1", model(Tokens::Proposed, 3, &[1, 1, 1]), 10_988_437);
}

fn broken(name: &str, model: Tokened, law: &'static str) {
    breaks(&format!("redlock {name}"), model, law);
}

#[test]
fn model_redlock_finds_that_counting_alone_is_wrong() {
    broken("A, each counts", model(Tokens::Counted, 3, &[2, 1]), "tokens rise");
}

#[test]
fn model_redlock_finds_that_writing_back_anyway_is_wrong() {
    let model = model(Tokens::WrittenAnyway, 3, &[2, 2]);
    broken("B, written whether owned or not", model, "tokens are unique");
}

#[test]
fn model_redlock_finds_a_loss_without_quarantine() {
    let losses = Losses { most: 1, ..NO_LOSS };
    let model = Tokened { losses, ..model(Tokens::Written, 3, &[1, 1]) };
    broken("C, a loss without quarantine", model, "tokens are unique");
}

#[test]
fn model_redlock_finds_that_a_quarantine_does_not_save_counters() {
    let losses = Losses { clocked: false, elapsed_check: false, ..VOLATILE };
    let model = Tokened { losses, ..model(Tokens::Written, 3, &[2, 1]) };
    broken("C, a quarantine without clocks", model, "tokens rise");
}

#[test]
fn model_redlock_finds_a_missing_elapsed_check() {
    let losses = Losses { elapsed_check: false, ..VOLATILE };
    let model = Tokened { losses, ..model(Tokens::Proposed, 3, &[2, 1]) };
    broken("D, a loss without the elapsed check", model, "tokens are unique");
}

#[test]
fn model_redlock_finds_proposals_without_clocks() {
    let losses = Losses { clocked: false, ..VOLATILE };
    let model = Tokened { losses, ..model(Tokens::Proposed, 3, &[2, 1]) };
    broken("D, a loss without clocks", model, "tokens rise");
}
