//! The lease of a line, against clocks, delays and a follower that lags: every history up to a
//! bound.
//!
//! Two clients stand in one line. Their questions, the answers and their heartbeats take any time;
//! the leader ends a session when its time is over by the leader's clock, at once or later. Whose
//! turn it is says the product's own `turn`; what a client makes of it is written here again.
//!
//! Law: no two guards are valid at one moment. A guard is valid until the deadline its client
//! counts, whatever the leader has done meanwhile.
//!
//! With a follower, the first client's questions and heartbeats go through it. Heartbeats are
//! writes that the leader confirms, but they move the session's end only with the follower's next
//! report, which comes once a tick. The follower may be cut off at any moment, and then still
//! answers what it can answer by itself.
//!
//! Clocks run at one rate: the margin for those that do not is the timed model's affair.

use distlock_core::queue::Turn;
use stateright::{Model, Property};

use crate::line_told::turn_of;
use crate::report::{breaks, holds};

/// From when a client counts its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counts {
    /// From the last heartbeat that was acknowledged. Right without a follower.
    Beat,
    /// From the last but one, less a tick, if the last was sent a tick after that was acknowledged.
    LastButOne,
    /// From the write that put it into line: a classic bug.
    Put,
}

#[derive(Clone)]
struct Timed {
    counts: Counts,
    /// Who waited proves its place by a write; otherwise it believes its last look: a classic bug.
    proves: bool,
    follower: bool,
    /// A heartbeat that the follower answers by itself counts, too: a classic bug.
    trusts_follower: bool,
    /// A session, in ticks.
    ttl: u8,
    /// The last tick.
    last: u8,
    /// How often each client asks, and how many heartbeats it sends.
    asks: [u8; 2],
    beats: [u8; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Out,
    Waiting(u8),
    /// Its turn, by its last look; to be proven.
    Turn(u8),
    Held {
        until: u8,
    },
    Leaving(u8),
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Answer {
    Dead,
    /// The token, and whether it is its turn.
    In(u8, bool),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Question {
    sent: u8,
    answer: Option<Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Beat {
    sent: u8,
    served: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    phase: Phase,
    question: Option<Question>,
    beat: Option<Beat>,
    /// When the lease it believes in began.
    kept: u8,
    /// The last heartbeat: when it was sent, and acknowledged.
    newest: (u8, u8),
    asks: u8,
    beats: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    now: u8,
    /// Client and token, first in line first.
    line: Vec<(u8, u8)>,
    tokens: u8,
    /// When the leader ends each session; nothing when it has.
    sessions: [Option<u8>; 2],
    clients: [Client; 2],
    /// What the follower knows of the line.
    copy: Vec<(u8, u8)>,
    /// The first client's session is to be prolonged with the next report.
    touched: bool,
    reported: bool,
    linked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Move {
    Tick,
    Expire(u8),
    Ask(u8),
    Serve(u8),
    Hear(u8),
    Beat(u8),
    ServeBeat(u8),
    HearBeat(u8),
    /// The follower tells the leader of sessions.
    Report,
    /// The follower learns of the line.
    Sync,
    Cut,
}

fn mine(line: &[(u8, u8)], me: u8) -> Answer {
    match turn_of(line, me) {
        Turn::Mine => Answer::In(me, true),
        Turn::Gone => Answer::Dead,
        Turn::Behind(_) | Turn::Refused(_) => Answer::In(me, false),
    }
}

impl World {
    /// Forgets what nothing hangs on any more: the same future is then the same state.
    fn tidy(&mut self) {
        for (c, client) in (0u8..).zip(&mut self.clients) {
            if client.phase != Phase::Done {
                continue;
            }
            (client.question, client.beat, client.asks, client.beats) = (None, None, 0, 0);
            (client.kept, client.newest) = (0, (0, 0));
            if !self.line.iter().any(|(owner, _)| *owner == c) {
                self.sessions[usize::from(c)] = None;
            }
        }
        if !self.linked {
            (self.touched, self.reported) = (false, false);
        }
    }
}

impl Timed {
    /// Whether a client speaks to the follower.
    fn through(&self, c: usize) -> bool {
        self.follower && c == 0
    }

    fn serve(&self, world: &mut World, c: usize) {
        let me = u8::try_from(c).expect("two clients");
        let dead = world.sessions[c].is_none();
        let answer = match world.clients[c].phase {
            Phase::Out if dead => Answer::Dead,
            Phase::Out => {
                world.tokens += 1;
                world.line.push((me, world.tokens));
                mine(&world.line, world.tokens)
            }
            // A look: the follower answers it from what it knows.
            Phase::Waiting(t) if self.through(c) => mine(&world.copy, t),
            Phase::Waiting(t) => mine(&world.line, t),
            // The proof is a write, which only the leader answers.
            Phase::Turn(t) => match world.line.contains(&(me, t)) {
                true => Answer::In(t, true),
                false => Answer::Dead,
            },
            Phase::Leaving(t) => {
                // Nothing hangs on its answer.
                world.line.retain(|e| *e != (me, t));
                let client = &mut world.clients[c];
                client.question = None;
                client.phase = if client.asks > 0 { Phase::Out } else { Phase::Done };
                return;
            }
            Phase::Held { .. } | Phase::Done => return,
        };
        let wrote = !matches!(world.clients[c].phase, Phase::Waiting(_));
        if self.through(c) && wrote {
            // It has applied a write of its own client before it answers.
            world.copy = world.line.clone();
        }
        if let Some(question) = &mut world.clients[c].question {
            question.answer = Some(answer);
        }
    }

    /// Whether a question can be served: reads of the follower always, everything else at the
    /// leader.
    fn reaches(&self, world: &World, c: usize) -> bool {
        let looks = matches!(world.clients[c].phase, Phase::Waiting(_));
        !self.through(c) || world.linked || looks
    }

    fn lease_end(&self, client: &Client, put: u8) -> u8 {
        match self.counts {
            Counts::Beat => client.kept + self.ttl,
            Counts::LastButOne => client.kept + self.ttl - 1,
            Counts::Put => put + self.ttl,
        }
    }

    fn hear(&self, world: &mut World, c: usize) {
        let client = &mut world.clients[c];
        let Some(Question { sent, answer: Some(answer) }) = client.question.take() else { return };
        // Whose own lease is over says so, and is never granted.
        let end = self.lease_end(client, sent);
        let over = end <= world.now;
        client.phase = match (client.phase, answer) {
            (_, Answer::Dead) => Phase::Done,
            (_, Answer::In(..)) if over => Phase::Done,
            // A join that is first by its own answer, or a place that was proven.
            (Phase::Out, Answer::In(_, true)) | (Phase::Turn(_), Answer::In(..)) => {
                Phase::Held { until: end }
            }
            (_, Answer::In(t, true)) if self.proves => Phase::Turn(t),
            (_, Answer::In(_, true)) => Phase::Held { until: sent + self.ttl },
            (_, Answer::In(t, false)) => Phase::Waiting(t),
        };
    }

    fn serve_beat(&self, world: &mut World, c: usize) {
        let Some(beat) = &mut world.clients[c].beat else { return };
        beat.served = true;
        if self.through(c) {
            world.touched = true;
        } else if let Some(end) = &mut world.sessions[c] {
            *end = world.now + self.ttl;
        } else {
            // The session is over: no acknowledgement.
            world.clients[c].beat = None;
        }
    }

    /// A heartbeat through the follower is a write that the leader confirms.
    fn beat_reaches(&self, world: &World, c: usize) -> bool {
        let confirmed = world.linked && world.sessions[c].is_some();
        !self.through(c) || confirmed || self.trusts_follower
    }

    fn hear_beat(&self, world: &mut World, c: usize) {
        let now = world.now;
        let client = &mut world.clients[c];
        let Some(Beat { sent, .. }) = client.beat.take() else { return };
        if self.counts != Counts::LastButOne || !self.follower {
            client.kept = sent;
        } else if sent > client.newest.1 + 1 {
            // A whole tick lies between the acknowledgement of the one before and this one: the
            // follower has reported meanwhile, and the leader has heard it, since it heard this.
            client.kept = client.newest.0;
            client.newest = (sent, now);
        }
        let end = self.lease_end(client, 0);
        if let Phase::Held { until } = &mut client.phase
            && now < *until
            && self.counts != Counts::Put
        {
            *until = (*until).max(end);
        }
    }

    fn may_beat(client: &Client) -> bool {
        client.beats > 0 && !matches!(client.phase, Phase::Done | Phase::Leaving(_))
    }

    /// A look that would change nothing is not modelled.
    fn has_a_question(&self, world: &World, c: usize) -> bool {
        let line = if self.through(c) { &world.copy } else { &world.line };
        match world.clients[c].phase {
            Phase::Waiting(t) => mine(line, t) != Answer::In(t, false),
            Phase::Done => false,
            _ => true,
        }
    }
}

impl Model for Timed {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let client = |c: usize| Client {
            phase: Phase::Out,
            question: None,
            beat: None,
            // Beside one that speaks to a follower, the other is only there to be granted: its
            // session does not end.
            kept: if self.follower && c == 1 { self.last } else { 0 },
            newest: (0, 0),
            asks: self.asks[c],
            beats: self.beats[c],
        };
        vec![World {
            now: 0,
            line: Vec::new(),
            tokens: 0,
            sessions: [Some(self.ttl), Some(if self.follower { u8::MAX } else { self.ttl })],
            clients: [client(0), client(1)],
            copy: Vec::new(),
            touched: false,
            reported: true,
            linked: true,
        }]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        // While it can, the follower reports once a tick.
        if world.now < self.last && (!self.follower || world.reported || !world.linked) {
            moves.push(Move::Tick);
        }
        if self.follower && world.linked {
            if !world.reported {
                moves.push(Move::Report);
            }
            if world.copy != world.line {
                moves.push(Move::Sync);
            }
            moves.push(Move::Cut);
        }
        for c in 0..2u8 {
            let (client, i) = (&world.clients[usize::from(c)], usize::from(c));
            if world.sessions[i].is_some_and(|end| end <= world.now) {
                moves.push(Move::Expire(c));
            }
            match client.question {
                Some(Question { answer: None, .. }) if self.reaches(world, i) => {
                    moves.push(Move::Serve(c));
                }
                Some(Question { answer: Some(_), .. }) => moves.push(Move::Hear(c)),
                None if self.has_a_question(world, i) => moves.push(Move::Ask(c)),
                _ => {}
            }
            match client.beat {
                Some(Beat { served: false, .. }) if self.beat_reaches(world, i) => {
                    moves.push(Move::ServeBeat(c));
                }
                Some(Beat { served: true, .. }) => moves.push(Move::HearBeat(c)),
                None if Self::may_beat(client) && client.newest.0 < world.now => {
                    moves.push(Move::Beat(c));
                }
                _ => {}
            }
        }
    }

    fn next_state(&self, last: &World, next: Move) -> Option<World> {
        let mut world = last.clone();
        match next {
            Move::Tick => {
                world.now += 1;
                world.reported = false;
            }
            Move::Expire(c) => {
                world.sessions[usize::from(c)] = None;
                world.line.retain(|(owner, _)| *owner != c);
            }
            Move::Ask(c) => {
                let client = &mut world.clients[usize::from(c)];
                if let Phase::Held { .. } = client.phase {
                    // It lets go before the question leaves.
                    let held = last.line.iter().find(|(owner, _)| *owner == c);
                    client.phase = held.map_or(Phase::Done, |(_, t)| Phase::Leaving(*t));
                }
                if client.phase == Phase::Out {
                    client.asks -= 1;
                }
                if client.phase != Phase::Done {
                    // Remembered only where something is counted from it.
                    let counts = self.counts == Counts::Put || !self.proves;
                    let sent = if counts { last.now } else { 0 };
                    client.question = Some(Question { sent, answer: None });
                }
            }
            Move::Serve(c) => self.serve(&mut world, c.into()),
            Move::Hear(c) => self.hear(&mut world, c.into()),
            Move::Beat(c) => {
                let client = &mut world.clients[usize::from(c)];
                client.beats -= 1;
                client.beat = Some(Beat { sent: last.now, served: false });
            }
            Move::ServeBeat(c) => self.serve_beat(&mut world, c.into()),
            Move::HearBeat(c) => self.hear_beat(&mut world, c.into()),
            Move::Report => {
                world.reported = true;
                if std::mem::take(&mut world.touched)
                    && let Some(end) = &mut world.sessions[0]
                {
                    *end = world.now + self.ttl;
                }
            }
            Move::Sync => world.copy = world.line.clone(),
            Move::Cut => world.linked = false,
        }
        world.tidy();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two guards are valid at once", |_, world: &World| {
                let valid = |c: &&Client| match c.phase {
                    Phase::Held { until } => world.now < until,
                    _ => false,
                };
                world.clients.iter().filter(valid).count() < 2
            }),
            Property::sometimes("both are granted in turn", |_, world: &World| {
                let over = |c: &Client| matches!(c.phase, Phase::Leaving(_) | Phase::Done);
                let held = |c: &Client| matches!(c.phase, Phase::Held { .. });
                world.tokens == 2 && over(&world.clients[0]) && held(&world.clients[1])
            }),
        ]
    }
}

const RIGHT: Timed = Timed {
    counts: Counts::Beat,
    proves: true,
    follower: false,
    trusts_follower: false,
    ttl: 2,
    last: 4,
    asks: [2, 1],
    beats: [2, 1],
};
const FOLLOWED: Timed = Timed {
    counts: Counts::LastButOne,
    follower: true,
    ttl: 4,
    last: 7,
    asks: [1, 1],
    beats: [3, 0],
    ..RIGHT
};

const LAW: &str = "no two guards are valid at once";

#[test]
fn model_line_leases_never_overlap() {
    holds("line, one leader", RIGHT, 779_243);
}

#[test]
fn model_line_leases_never_overlap_through_a_follower() {
    holds("line, a follower", FOLLOWED, 1_335_419);
}

#[test]
fn model_line_finds_a_grant_after_the_waiters_own_lease() {
    breaks("line, no proof of place", Timed { proves: false, beats: [1, 0], ..RIGHT }, LAW);
}

#[test]
fn model_line_finds_a_deadline_counted_from_the_put() {
    breaks("line, from the put", Timed { counts: Counts::Put, ..RIGHT }, LAW);
}

#[test]
fn model_line_finds_a_follower_trusted_for_the_leaders_clock() {
    let trusts_follower = true;
    breaks("line, pings count", Timed { trusts_follower, ..FOLLOWED }, LAW);
    breaks("line, last write counts", Timed { counts: Counts::Beat, ..FOLLOWED }, LAW);
}
