//! Leases on clocks that drift: no two guards are valid at once, by the deadline rules and by no
//! less.
//!
//! A tick of true time is ten units of the server's clock and nine, ten or eleven of a client's, so
//! that ρ = 10 % covers the rates exactly. Messages and answers may be late by any number of ticks
//! and come again; a client may do nothing for as long as it likes, which is a pause. The server is
//! the real step, the deadline the real formula.

use std::collections::BTreeSet;
use std::time::Duration;

use distlock_core::BootInstant;
use distlock_core::backend::deadline;
use distlock_core::state::{Claim, LockState, Micros, Now, Op, Reply, Rules};
use stateright::{Model, Property};

use crate::desk::{claim, number};
use crate::report::{breaks, holds};

/// Units of the server's clock in a tick.
const UNITS: u64 = 10;
const TTL: Duration = Duration::from_micros(2 * UNITS);

/// How a client makes its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// From before the very question, what is left, less the margin; lost stays lost.
    Right,
    /// From when the answer arrived.
    FromReply,
    /// From before the question, but its own TTL instead of what is left.
    OwnTtl,
    /// Without a margin.
    NoMargin,
    /// A renewal counts though the deadline has passed meanwhile.
    Revives,
    /// Right, and a push makes a guard if its token is above the mark of the last answered wait.
    Push,
    /// The same without the mark.
    PushBlind,
}

impl Rule {
    fn pushes(self) -> bool {
        matches!(self, Rule::Push | Rule::PushBlind)
    }

    fn margin(self) -> Duration {
        if self == Rule::NoMargin { Duration::ZERO } else { TTL / 10 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Ask {
    Acquire,
    Renew,
    Release,
}

/// A question under way: which request, and the tick at which it left.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Letter {
    req: u8,
    ask: Ask,
    sent: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Word {
    Granted {
        token: u64,
        left: Duration,
    },
    Renewed {
        left: Duration,
    },
    /// In line, while this was the highest token.
    Waiting {
        hi: u64,
    },
    /// Promoted: sent without being asked.
    Turn {
        token: u64,
    },
}

/// An answer under way: to which request, and when its question left.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Note {
    req: u8,
    sent: u64,
    word: Word,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Guard {
    token: u64,
    until: BootInstant,
    lost: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    rate: u64,
    /// Its present request.
    req: u8,
    /// How often it may still write.
    paper: u8,
    guard: Option<Guard>,
    /// The last wait that was answered: when it was sent, and the mark.
    waited: Option<(u64, u64)>,
}

impl Client {
    fn at(&self, tick: u64) -> BootInstant {
        BootInstant::from_nanos(tick * self.rate * 1000)
    }

    fn valid(&self, tick: u64) -> Option<Guard> {
        self.guard.filter(|g| !g.lost && self.at(tick) < g.until)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    tick: u64,
    server: LockState,
    letters: BTreeSet<Letter>,
    notes: BTreeSet<Note>,
    clients: [Client; 2],
    /// The highest token that ever made a guard.
    top: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Move {
    Write(usize, Ask),
    Deliver(Letter),
    Read(Note),
    Tick,
}

/// Two clients and one lock.
struct Timed {
    rule: Rule,
    ticks: u64,
    /// How many questions each client may ask.
    paper: [u8; 2],
    /// How many requests each client makes, one after the other.
    requests: [u8; 2],
    rates: Vec<[u64; 2]>,
}

impl Timed {
    fn of(rule: Rule, ticks: u64, paper: [u8; 2]) -> Self {
        let rates = [9, 10, 11];
        let rates = rates.iter().flat_map(|a| rates.map(|b| [*a, b])).collect();
        Self { rule, ticks, paper, requests: [1, 1], rates }
    }

    fn ask(&self, req: u8) -> Claim {
        Claim { ttl: TTL, ..claim(req, if req.is_multiple_of(2) { "a" } else { "b" }) }
    }

    fn serve(&self, world: &mut World, letter: Letter) {
        let at = Micros(world.tick * UNITS);
        let claim = self.ask(letter.req);
        let op = match letter.ask {
            Ask::Acquire => Op::Acquire { claim, wait: Some(TTL) },
            Ask::Renew => Op::Renew { req: claim.req, ttl: TTL },
            Ask::Release => Op::Release { req: claim.req },
        };
        // A push is as good as a grant only if the promotion lasts a whole TTL.
        let short = Duration::from_micros(UNITS);
        let rules =
            Rules { claim: if self.rule.pushes() { TTL } else { short }, ..Rules::default() };
        let step = world.server.step(&op, Now { lease: at, wall: at }, &rules);
        let word = match step.reply {
            Reply::Granted { token, remaining, .. } => {
                Some(Word::Granted { token: token.get(), left: remaining })
            }
            Reply::Renewed { remaining, .. } => Some(Word::Renewed { left: remaining }),
            Reply::Waiting { .. } if self.rule.pushes() => {
                Some(Word::Waiting { hi: world.server.hi })
            }
            _ => None,
        };
        let Letter { req, sent, .. } = letter;
        world.notes.extend(word.map(|word| Note { req, sent, word }));
        if self.rule.pushes() {
            for (req, _) in step.effects.turns {
                let hold = world.server.holds.iter().find(|h| h.claim.req == req);
                let word = hold.map(|h| Word::Turn { token: h.token });
                let req = number(&req);
                world.notes.extend(word.map(|word| Note { req, sent: 0, word }));
            }
        }
    }

    fn read(&self, world: &mut World, note: Note) {
        let tick = world.tick;
        let client = &mut world.clients[usize::from(note.req % 2)];
        let margin = self.rule.margin();
        let from = if self.rule == Rule::FromReply { tick } else { note.sent };
        match note.word {
            Word::Granted { token, left } if client.guard.is_none() => {
                let left = if self.rule == Rule::OwnTtl { TTL } else { left };
                let until = deadline(client.at(from), left, margin);
                client.guard = Some(Guard { token, until, lost: false });
            }
            Word::Renewed { left } => {
                let until = deadline(client.at(from), left, margin);
                let now = client.at(tick);
                if let Some(guard) = &mut client.guard
                    && (self.rule == Rule::Revives || (!guard.lost && now < guard.until))
                {
                    guard.until = guard.until.max(until);
                    guard.lost = false;
                }
            }
            Word::Waiting { hi } => {
                client.waited = client.waited.max(Some((note.sent, hi)));
            }
            Word::Turn { token } if client.guard.is_none() => {
                if let Some((sent, mark)) = client.waited
                    && (token > mark || self.rule == Rule::PushBlind)
                {
                    let until = deadline(client.at(sent), TTL, margin);
                    client.guard = Some(Guard { token, until, lost: false });
                }
            }
            Word::Granted { .. } | Word::Turn { .. } => {}
        }
        // What came too late makes no guard at all.
        if client.valid(tick).is_none() && client.guard.is_some_and(|g| !g.lost) {
            client.guard = None;
        }
        let valid = world.clients.iter().filter_map(|c| c.valid(tick)).map(|g| g.token);
        world.top = valid.max().unwrap_or(0).max(world.top);
    }
}

impl Model for Timed {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let client = |c: u8, rate: u64| Client {
            rate,
            req: c,
            paper: self.paper[usize::from(c)],
            guard: None,
            waited: None,
        };
        let world = |rates: &[u64; 2]| World {
            tick: 1,
            server: LockState::default(),
            letters: BTreeSet::new(),
            notes: BTreeSet::new(),
            clients: [client(0, rates[0]), client(1, rates[1])],
            top: 0,
        };
        self.rates.iter().map(world).collect()
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        for (c, client) in world.clients.iter().enumerate() {
            match client.guard {
                _ if client.req / 2 >= self.requests[c] => {}
                None if client.paper > 0 => moves.push(Move::Write(c, Ask::Acquire)),
                Some(guard) if client.paper > 0 => {
                    if !guard.lost {
                        moves.push(Move::Write(c, Ask::Renew));
                    }
                    moves.push(Move::Write(c, Ask::Release));
                }
                _ => {}
            }
        }
        moves.extend(world.letters.iter().map(|l| Move::Deliver(*l)));
        let mine = |n: &&Note| world.clients[usize::from(n.req % 2)].req == n.req;
        moves.extend(world.notes.iter().filter(mine).map(|n| Move::Read(*n)));
        if world.tick < self.ticks {
            moves.push(Move::Tick);
        }
    }

    fn next_state(&self, last: &World, next: Move) -> Option<World> {
        let mut world = last.clone();
        match next {
            Move::Write(c, ask) => {
                let client = &mut world.clients[c];
                client.paper -= 1;
                let fresh = world.letters.insert(Letter { req: client.req, ask, sent: last.tick });
                if !fresh {
                    return None;
                }
                if ask == Ask::Release {
                    (client.guard, client.waited) = (None, None);
                    client.req += 2;
                }
            }
            Move::Deliver(letter) => self.serve(&mut world, letter),
            Move::Read(note) => self.read(&mut world, note),
            Move::Tick => {
                world.tick += 1;
                for client in &mut world.clients {
                    let over = client.valid(world.tick).is_none();
                    if let Some(guard) = &mut client.guard {
                        guard.lost |= over;
                    }
                }
            }
        }
        Some(world).filter(|world| world != last)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("two guards are never valid at once", |_, w: &World| {
                w.clients.iter().filter(|c| c.valid(w.tick).is_some()).count() < 2
            }),
            Property::always("nobody is valid after a later holder was", |_, w: &World| {
                let mut valid = w.clients.iter().filter_map(|c| c.valid(w.tick));
                valid.all(|g| g.token >= w.top)
            }),
            Property::sometimes("the lock passes from one to the other", |_, w: &World| {
                w.server.holds.iter().any(|h| h.claim.req == crate::desk::req(1))
                    && w.clients[0].guard.is_some_and(|g| g.lost)
                    && w.clients[1].valid(w.tick).is_some()
            }),
        ]
    }
}

const ONE: &str = "two guards are never valid at once";
const ORDER: &str = "nobody is valid after a later holder was";

#[test]
fn model_timed_deadlines_keep_guards_apart() {
    holds("timed", Timed::of(Rule::Right, 4, [2, 2]), 1_521_818);
}

#[test]
fn model_timed_replays_and_renewals() {
    let rates = vec![[9, 11], [10, 10], [11, 9]];
    holds("timed renewals", Timed { rates, ..Timed::of(Rule::Right, 4, [3, 1]) }, 408_661);
}

/// Clients that agree with the server: what a push breaks it breaks without any drift.
fn pushed(rule: Rule) -> Timed {
    Timed { requests: [1, 2], rates: vec![[10, 10]], ..Timed::of(rule, 3, [2, 3]) }
}

#[test]
fn model_timed_push_with_the_mark() {
    holds("timed push", pushed(Rule::Push), 618_389);
}

#[test]
fn model_timed_finds_a_deadline_from_the_reply() {
    breaks("timed from reply", Timed::of(Rule::FromReply, 4, [3, 1]), ONE);
}

#[test]
fn model_timed_finds_a_replay_with_its_own_ttl() {
    breaks("timed own ttl", Timed::of(Rule::OwnTtl, 4, [3, 1]), ONE);
}

#[test]
fn model_timed_finds_a_missing_margin() {
    breaks("timed no margin", Timed::of(Rule::NoMargin, 4, [3, 1]), ONE);
}

#[test]
fn model_timed_finds_a_renewal_after_the_deadline() {
    breaks("timed revives", Timed::of(Rule::Revives, 4, [2, 2]), ORDER);
}

#[test]
fn model_timed_finds_a_push_without_the_mark() {
    breaks("timed push blind", pushed(Rule::PushBlind), ONE);
}
