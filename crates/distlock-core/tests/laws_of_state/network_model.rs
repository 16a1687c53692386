//! Clients, a network that does what it likes, and the real step: every history up to a bound.
//!
//! Time is a small number of ticks, the wall goes with the lease clock, and a tick may come between
//! any two moves: expiry at any moment. Whatever was once sent stays deliverable: at any time, in
//! any order, any number of times, or never. That is a network that loses, delays, repeats and
//! reorders; an explicit loss would only forbid moves, so it appears once, as the server's crash,
//! which takes everything under way with it and keeps the state.

use std::collections::BTreeSet;
use std::time::Duration;

use distlock_core::state::{Claim, LockState, Micros, Now, Op, Phase, Reply, Rules};
use distlock_core::{Mode, ReqId};
use stateright::{Model, Property};

use crate::desk::{mode, nz};
use crate::laws::{Law, Memory, Seen, compatible, not_stuck};
use crate::report::{breaks, holds};
use crate::variants::Variant;

const TICK: Duration = Duration::from_secs(1);

/// A message to the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Mail {
    Acquire(u8),
    Renew(u8),
    Release(u8),
    Cancel(u8),
}

/// What a client believes of one of its requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Belief {
    Idle,
    Asked,
    Held(u64),
    Ended,
}

/// One move of the world.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Move {
    /// A client begins, or asks again.
    Ask(u8),
    /// A client hears of its grant, and writes to the resource at once.
    Hear(u8, u64),
    /// A client posts a renewal.
    Renew(u8),
    /// A client gives back and is done.
    Release(u8),
    /// A client's patience ends, or its future is dropped.
    GiveUp(u8),
    /// The network delivers, and keeps a copy.
    Deliver(Mail),
    /// The server finds that a promoted waiter cannot be told.
    Withdraw(u8),
    /// The server's timer.
    Settle,
    /// Time passes.
    Tick,
    /// The server dies and comes back with its state; everything under way is lost.
    Crash,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    server: LockState,
    tick: u64,
    mail: BTreeSet<Mail>,
    grants: BTreeSet<(u8, u64)>,
    beliefs: Vec<Belief>,
    /// The highest token that the fenced resource has accepted.
    register: u64,
    memory: Memory,
    crashes: u8,
    withdrawn: u8,
    broken: Option<Law>,
}

#[derive(Clone)]
struct Net {
    asks: Vec<Claim>,
    ticks: u64,
    crashes: u8,
    /// How many wake-ups fail: each costs a token, so that there must be an end to them.
    deaf: u8,
    /// Whether holds are renewed.
    renew: bool,
    /// Whether a request of an owner starts only when the one before it has ended.
    in_turn: bool,
    /// Whether to look further where a law was broken already.
    go_on: bool,
    server: Variant,
    rules: Rules,
}

/// Requests of these owners, each for so many ticks.
fn claims(ttl: u32, asks: &[(&str, Mode)]) -> Vec<Claim> {
    let numbered = asks.iter().zip(0..);
    numbered.map(|((owner, m), n)| Claim { ttl: TICK * ttl, ..mode(n, owner, *m) }).collect()
}

impl Net {
    fn of(asks: Vec<Claim>, ticks: u64) -> Self {
        let rules = Rules { claim: TICK, tombstone: TICK * 1000, ..Rules::default() };
        let server = Variant::Real;
        let (crashes, deaf, renew, in_turn, go_on) = (0, 0, true, true, false);
        Self { asks, ticks, crashes, deaf, renew, in_turn, go_on, server, rules }
    }

    fn now(&self, world: &World) -> Now {
        let at = Micros(0).plus(TICK * u32::try_from(world.tick).expect("few ticks"));
        Now { lease: at, wall: at }
    }

    fn serve(&self, world: &mut World, op: &Op) -> Reply {
        let now = self.now(world);
        let before = world.server.clone();
        let reply = self.server.step(&mut world.server, op, now, &self.rules).reply;
        let rules = &self.rules;
        let seen = Seen { before: &before, op, reply: &reply, after: &world.server, now, rules };
        world.broken = world.memory.judge(&seen).err();
        reply
    }

    fn may_start(&self, world: &World, n: usize) -> bool {
        let earlier = self.asks[..n].iter().zip(&world.beliefs);
        let mut mine = earlier.filter(|(ask, _)| ask.owner == self.asks[n].owner);
        !self.in_turn || mine.all(|(_, belief)| *belief == Belief::Ended)
    }

    /// A write by whoever really holds the lock is never refused.
    fn fence_lets_the_holder_in(&self, world: &World) -> bool {
        let now = self.now(world).lease;
        world.server.holds.iter().all(|h| {
            let believed = world.beliefs[index(&h.claim.req)];
            let alone = h.claim.mode == Mode::Exclusive;
            let real = alone && h.phase == Phase::Held && h.expires > now;
            !(real && believed == Belief::Held(h.token)) || h.token >= world.register
        })
    }
}

fn index(req: &ReqId) -> usize {
    usize::from(crate::desk::number(req))
}

impl Model for Net {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            server: LockState::default(),
            tick: 1,
            mail: BTreeSet::new(),
            grants: BTreeSet::new(),
            beliefs: vec![Belief::Idle; self.asks.len()],
            register: 0,
            memory: Memory::default(),
            crashes: 0,
            withdrawn: 0,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.broken.is_some() && !self.go_on {
            return;
        }
        for (n, belief) in (0u8..).zip(&world.beliefs) {
            match belief {
                Belief::Idle if !self.may_start(world, n.into()) => {}
                Belief::Idle => moves.push(Move::Ask(n)),
                Belief::Asked => {
                    if !world.mail.contains(&Mail::Acquire(n)) {
                        moves.push(Move::Ask(n));
                    }
                    moves.push(Move::GiveUp(n));
                    let mine = world.grants.iter().filter(|(r, _)| *r == n);
                    moves.extend(mine.map(|(_, token)| Move::Hear(n, *token)));
                }
                Belief::Held(_) => {
                    if self.renew && !world.mail.contains(&Mail::Renew(n)) {
                        moves.push(Move::Renew(n));
                    }
                    moves.push(Move::Release(n));
                }
                Belief::Ended => {}
            }
        }
        moves.extend(world.mail.iter().map(|mail| Move::Deliver(*mail)));
        if world.withdrawn < self.deaf {
            let claimed = |p: &Phase| matches!(p, Phase::Claimed { .. });
            let told = world.server.holds.iter().filter(|h| claimed(&h.phase));
            moves.extend(told.map(|h| Move::Withdraw(crate::desk::number(&h.claim.req))));
        }
        moves.push(Move::Settle);
        if world.tick < self.ticks {
            moves.push(Move::Tick);
        }
        if world.crashes < self.crashes {
            moves.push(Move::Crash);
        }
    }

    fn next_state(&self, last: &World, next: Move) -> Option<World> {
        let mut world = last.clone();
        let req = |n: u8| self.asks[usize::from(n)].req;
        match next {
            Move::Ask(n) => {
                world.beliefs[usize::from(n)] = Belief::Asked;
                world.mail.insert(Mail::Acquire(n));
            }
            Move::Hear(n, token) => {
                world.beliefs[usize::from(n)] = Belief::Held(token);
                world.register = world.register.max(token);
            }
            Move::Renew(n) => {
                world.mail.insert(Mail::Renew(n));
            }
            Move::Release(n) => {
                world.beliefs[usize::from(n)] = Belief::Ended;
                world.mail.insert(Mail::Release(n));
            }
            Move::GiveUp(n) => {
                world.beliefs[usize::from(n)] = Belief::Ended;
                world.mail.insert(Mail::Cancel(n));
            }
            Move::Deliver(mail) => {
                let ttl = self.asks[0].ttl;
                let op = match mail {
                    Mail::Acquire(n) => {
                        let claim = self.asks[usize::from(n)].clone();
                        Op::Acquire { claim, wait: Some(ttl) }
                    }
                    Mail::Renew(n) => Op::Renew { req: req(n), ttl },
                    Mail::Release(n) => Op::Release { req: req(n) },
                    Mail::Cancel(n) => Op::Cancel { req: req(n) },
                };
                let reply = self.serve(&mut world, &op);
                if let (Mail::Acquire(n), Reply::Granted { token, .. }) = (mail, reply) {
                    world.grants.insert((n, token.get()));
                }
            }
            Move::Withdraw(n) => {
                world.withdrawn += 1;
                self.serve(&mut world, &Op::Withdraw { req: req(n), gone: false });
            }
            Move::Settle => {
                self.serve(&mut world, &Op::Settle);
            }
            Move::Tick => world.tick += 1,
            Move::Crash => {
                world.crashes += 1;
                world.mail.clear();
                world.grants.clear();
                let kept = serde_json::to_string(&world.server).expect("a state is data");
                world.server = serde_json::from_str(&kept).expect("and comes back");
            }
        }
        Some(world).filter(|world| world != last)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn kept(world: &World, law: Law) -> bool {
            world.broken != Some(law)
        }
        vec![
            Property::always("one holder", |_, w: &World| {
                kept(w, Law::OneHolder) && compatible(&w.server)
            }),
            Property::always("tokens rise", |_, w: &World| kept(w, Law::TokensRise)),
            Property::always("same grant", |_, w: &World| kept(w, Law::SameGrant)),
            Property::always("same answer", |_, w: &World| kept(w, Law::SameAnswer)),
            Property::always("ended stays ended", |_, w: &World| kept(w, Law::EndedStaysEnded)),
            Property::always("only its own ends", |_, w: &World| kept(w, Law::OnlyItsOwnEnds)),
            Property::always("no overtaking", |_, w: &World| kept(w, Law::NoOvertaking)),
            Property::always("nothing undone", |_, w: &World| kept(w, Law::NothingLeftUndone)),
            Property::always("nothing dead", |_, w: &World| kept(w, Law::NothingDeadStays)),
            Property::always("the fence lets the holder in", |net: &Net, w: &World| {
                net.fence_lets_the_holder_in(w)
            }),
            Property::always("never stuck", |net: &Net, w: &World| {
                not_stuck(&w.server, net.now(w), &net.rules)
            }),
            Property::sometimes("somebody waits and is let in", |_, w: &World| {
                w.server.holds.iter().any(|h| matches!(h.phase, Phase::Claimed { .. }))
            }),
            Property::sometimes("everybody is done", |_, w: &World| {
                w.beliefs.iter().all(|b| *b == Belief::Ended)
            }),
        ]
    }
}

const ALONE: Mode = Mode::Exclusive;

const A: (&str, Mode) = ("a", ALONE);
const B: (&str, Mode) = ("b", ALONE);
const C: (&str, Mode) = ("c", ALONE);

/// Two clients, two requests each.
fn two_by_two() -> Net {
    Net { renew: false, ..Net::of(claims(1, &[A, B, A, B]), 2) }
}

#[test]
fn model_network_two_clients_two_requests() {
    holds("network 2x2", two_by_two(), 1_044_366);
}

#[test]
fn model_network_renewal() {
    holds("network renewal", Net::of(claims(2, &[A, B]), 6), 126_756);
}

#[test]
fn model_network_crash() {
    let net = Net { crashes: 1, renew: false, ..Net::of(claims(1, &[A, B, A]), 3) };
    holds("network crash", net, 906_186);
}

#[test]
fn model_network_re_entry() {
    holds("network re-entry", Net { in_turn: false, ..Net::of(claims(2, &[A, A, B]), 3) }, 280_093);
}

#[test]
fn model_network_readers_and_writer() {
    let three = claims(2, &[("a", Mode::Shared), B, ("c", Mode::Shared)]);
    holds("network readers", Net { renew: false, ..Net::of(three, 4) }, 735_159);
}

#[test]
fn model_network_permits() {
    let two = Mode::Permit(nz(2));
    let three = claims(2, &[("a", two), ("b", two), ("c", two)]);
    holds("network permits", Net { renew: false, ..Net::of(three, 4) }, 1_342_023);
}

#[test]
fn model_network_deaf_waiters() {
    let net = Net { deaf: 2, renew: false, ..Net::of(claims(2, &[A, B, C]), 2) };
    holds("network deaf", net, 65_853);
}

#[test]
fn model_network_min_hold_and_lock_delay() {
    let mut asks = claims(2, &[A, B, A]);
    asks[0].min_hold = TICK * 3;
    asks[0].lock_delay = TICK;
    asks[1].lock_delay = TICK * 2;
    holds("network delays", Net { renew: false, ..Net::of(asks, 5) }, 1_063_103);
}

fn broken(server: Variant, law: &'static str) {
    let net = Net { server, go_on: true, ..Net::of(claims(2, &[A, B, A, B]), 4) };
    breaks(&format!("network {server:?}"), net, law);
}

#[test]
fn model_network_finds_a_missing_tombstone() {
    broken(Variant::NoTombstone, "ended stays ended");
}

#[test]
fn model_network_finds_a_forgotten_release() {
    broken(Variant::ReleaseForgotten, "ended stays ended");
}

#[test]
fn model_network_finds_barging() {
    broken(Variant::Barging, "no overtaking");
}

#[test]
fn model_network_finds_a_renewal_that_resurrects() {
    broken(Variant::RenewResurrects, "tokens rise");
}

#[test]
fn model_network_finds_a_release_without_owner_check() {
    broken(Variant::ReleaseUnchecked, "only its own ends");
}

#[test]
fn model_network_finds_a_forgotten_token() {
    broken(Variant::TokenForgotten, "tokens rise");
}

#[test]
fn model_network_finds_a_token_that_the_fence_refuses() {
    broken(Variant::TokenForgotten, "the fence lets the holder in");
}

#[test]
fn model_network_finds_dead_waiters() {
    broken(Variant::DeadWaitersStay, "nothing dead");
}
