//! A line, against a network that loses and repeats: every history up to a bound.
//!
//! Each client asks once. Its join may be sent twice, each copy may arrive at any later time or
//! never, each answer may be lost; the client may give up at any time; the leader may end a session
//! at any moment. Whose turn it is says the product's own `turn`.
//!
//! Laws: tokens rise in the order of grants, nobody is granted twice, a request that left is never
//! in line again, one request is one entry, and whoever is alive and first in line can be granted.
//!
//! A grant happens where it is decided: at the leader when it serves the join that is first or the
//! proof of who waited; at the client when that believes its last look.

use distlock_core::queue::Turn;
use stateright::{Model, Property};

use crate::line_told::turn_of;
use crate::report::{breaks, holds};

#[derive(Clone)]
struct QueueDriver {
    clients: u8,
    /// How often a join is sent.
    copies: u8,
    /// What left is remembered, so that a late copy of its join is refused; otherwise a classic
    /// bug.
    tombstones: bool,
    /// Who waited proves its place by a write; otherwise it believes its last look: a classic bug.
    proves: bool,
    /// A join finds the entry an earlier copy made; otherwise a classic bug.
    finds: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// Asks; so many copies of its join were sent.
    Joining(u8),
    Waiting(u8),
    /// Its turn, by its last look.
    Turn(u8),
    Held(u8),
    /// Gives up or releases: the leave is repeated until it is answered.
    Leaving,
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Message {
    Join(u8),
    Joined(u8, u8, bool),
    Leave(u8),
    Prove(u8, u8),
    Proven(u8, u8, bool),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    /// Client and token, first in line first.
    line: Vec<(u8, u8)>,
    tokens: u8,
    left: Vec<u8>,
    dead: Vec<u8>,
    wire: Vec<Message>,
    clients: Vec<Phase>,
    granted: Vec<u8>,
    fell: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Move {
    Send(u8),
    GiveUp(u8),
    Look(u8),
    Prove(u8),
    /// A message arrives.
    Deliver(Message),
    Lose(Message),
    Expire(u8),
}

impl World {
    fn turn(&self, t: u8) -> Turn {
        turn_of(&self.line, t)
    }

    fn post(&mut self, message: Message) {
        self.wire.push(message);
        self.wire.sort_unstable();
    }

    fn grant(&mut self, t: u8) {
        // The same grant once more is no grant.
        if self.granted.last() != Some(&t) {
            self.fell |= self.granted.iter().any(|g| *g >= t);
            self.granted.push(t);
        }
    }
}

impl QueueDriver {
    fn join(&self, world: &mut World, c: u8) {
        if world.dead.contains(&c) || (self.tombstones && world.left.contains(&c)) {
            return;
        }
        let there = world.line.iter().find(|(owner, _)| *owner == c).map(|(_, t)| *t);
        let t = match there.filter(|_| self.finds) {
            Some(t) => t,
            None => {
                world.tokens += 1;
                world.line.push((c, world.tokens));
                world.tokens
            }
        };
        let first = world.turn(t) == Turn::Mine;
        if first {
            world.grant(t);
        }
        world.post(Message::Joined(c, t, first));
    }

    fn deliver(&self, world: &mut World, message: Message) {
        match message {
            Message::Join(c) => self.join(world, c),
            Message::Joined(c, t, first) => {
                let phase = &mut world.clients[usize::from(c)];
                if let Phase::Joining(_) = phase {
                    *phase = if first { Phase::Held(t) } else { Phase::Waiting(t) };
                }
            }
            Message::Leave(c) => {
                world.line.retain(|(owner, _)| *owner != c);
                world.left.push(c);
                world.left.sort_unstable();
                world.left.dedup();
                world.clients[usize::from(c)] = Phase::Done;
            }
            Message::Prove(c, t) => {
                let there = world.line.contains(&(c, t));
                if there {
                    world.grant(t);
                }
                world.post(Message::Proven(c, t, there));
            }
            Message::Proven(c, t, yes) => {
                let phase = &mut world.clients[usize::from(c)];
                if *phase == Phase::Turn(t) {
                    *phase = if yes { Phase::Held(t) } else { Phase::Leaving };
                }
            }
        }
    }

    fn look(&self, world: &mut World, c: u8, t: u8) {
        world.clients[usize::from(c)] = match world.turn(t) {
            Turn::Mine => Phase::Turn(t),
            Turn::Gone => Phase::Leaving,
            Turn::Behind(_) | Turn::Refused(_) => Phase::Waiting(t),
        };
    }
}

impl Model for QueueDriver {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            line: Vec::new(),
            tokens: 0,
            left: Vec::new(),
            dead: Vec::new(),
            wire: Vec::new(),
            clients: vec![Phase::Joining(0); self.clients.into()],
            granted: Vec::new(),
            fell: false,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.fell {
            return;
        }
        for (c, phase) in (0u8..).zip(&world.clients) {
            let asked = |m: &Message| matches!(m, Message::Leave(w) | Message::Prove(w, _) | Message::Proven(w, ..) if *w == c);
            let asked = world.wire.iter().any(asked);
            match phase {
                Phase::Joining(sent) => {
                    if *sent < self.copies {
                        moves.push(Move::Send(c));
                    }
                    if *sent > 0 {
                        moves.push(Move::GiveUp(c));
                    }
                }
                Phase::Waiting(_) => moves.extend([Move::Look(c), Move::GiveUp(c)]),
                Phase::Turn(_) if !asked => moves.extend([Move::Prove(c), Move::GiveUp(c)]),
                Phase::Held(_) => moves.push(Move::GiveUp(c)),
                Phase::Leaving if !asked => moves.push(Move::GiveUp(c)),
                _ => {}
            }
            if !world.dead.contains(&c) && world.line.iter().any(|(owner, _)| *owner == c) {
                moves.push(Move::Expire(c));
            }
        }
        let mut wire = world.wire.clone();
        wire.dedup();
        for message in wire {
            moves.push(Move::Deliver(message));
            moves.push(Move::Lose(message));
        }
    }

    fn next_state(&self, last: &World, next: Move) -> Option<World> {
        let mut world = last.clone();
        let take = |world: &mut World, message| {
            let at = world.wire.iter().position(|m| *m == message)?;
            Some(world.wire.remove(at))
        };
        match next {
            Move::Send(c) => {
                let Phase::Joining(sent) = world.clients[usize::from(c)] else { return None };
                world.clients[usize::from(c)] = Phase::Joining(sent + 1);
                world.post(Message::Join(c));
            }
            Move::GiveUp(c) => {
                world.clients[usize::from(c)] = Phase::Leaving;
                world.post(Message::Leave(c));
            }
            Move::Look(c) => {
                let Phase::Waiting(t) = world.clients[usize::from(c)] else { return None };
                self.look(&mut world, c, t);
            }
            Move::Prove(c) => {
                let Phase::Turn(t) = world.clients[usize::from(c)] else { return None };
                if self.proves {
                    world.post(Message::Prove(c, t));
                } else {
                    world.grant(t);
                    world.clients[usize::from(c)] = Phase::Held(t);
                }
            }
            Move::Deliver(message) => {
                take(&mut world, message)?;
                self.deliver(&mut world, message);
            }
            Move::Lose(message) => {
                take(&mut world, message)?;
            }
            Move::Expire(c) => {
                world.line.retain(|(owner, _)| *owner != c);
                world.dead.push(c);
                world.dead.sort_unstable();
            }
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("tokens rise", |_, world: &World| !world.fell),
            Property::always("what left is never in line", |_, world: &World| {
                !world.line.iter().any(|(c, _)| world.left.contains(c))
            }),
            Property::always("one request is one entry", |_, world: &World| {
                let mut owners: Vec<u8> = world.line.iter().map(|(c, _)| *c).collect();
                owners.sort_unstable();
                owners.windows(2).all(|w| w[0] != w[1])
            }),
            // Nobody holds or is about to, somebody stands first: what it can do leads to a grant,
            // or it leaves.
            Property::always("no line is stuck", |model: &QueueDriver, world: &World| {
                let Some((c, t)) = world.line.first().copied() else { return true };
                match world.clients[usize::from(c)] {
                    Phase::Done => false,
                    Phase::Waiting(w) => {
                        let mut later = world.clone();
                        model.look(&mut later, c, w);
                        w == t && later.clients[usize::from(c)] == Phase::Turn(t)
                    }
                    _ => true,
                }
            }),
            Property::sometimes("all are granted", |model: &QueueDriver, world: &World| {
                world.granted.len() == usize::from(model.clients)
            }),
        ]
    }
}

const RIGHT: QueueDriver =
    QueueDriver { clients: 2, copies: 2, tombstones: true, proves: true, finds: true };

#[test]
fn model_line_keeps_its_laws_in_a_bad_network() {
    holds("line, a bad network", RIGHT, 13_379);
    holds("line, a bad network, three", QueueDriver { clients: 3, copies: 1, ..RIGHT }, 152_096);
}

#[test]
fn model_line_finds_a_late_copy_of_a_join_that_was_undone() {
    let law = "what left is never in line";
    breaks("line, no tombstones", QueueDriver { tombstones: false, ..RIGHT }, law);
}

#[test]
fn model_line_finds_a_place_that_is_not_proven() {
    let model = QueueDriver { proves: false, clients: 3, ..RIGHT };
    breaks("line, a look is believed", model, "tokens rise");
}

#[test]
fn model_line_finds_a_join_that_does_not_know_its_own_entry() {
    breaks("line, two entries", QueueDriver { finds: false, ..RIGHT }, "one request is one entry");
}
