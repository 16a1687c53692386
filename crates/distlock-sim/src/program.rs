//! A program: who does what to which lock, and what goes wrong meanwhile. Plain data made from a
//! seed, so that a failing one can be shrunk and printed.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::Mode;

use crate::rng::Rng;
use crate::world::Net;

/// The families of stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// `LeaseDriver` over `Memory`.
    Lease,
    /// `QueueDriver` over `MemoryQueue`.
    Queue,
    /// `SessionDriver` over connections in memory.
    Session,
    /// `QuorumDriver` over `MemoryNode`s.
    Quorum,
}

/// How an acquire waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Until granted.
    Forever,
    /// Not at all.
    Try,
    /// For at most this long.
    For(Duration),
}

/// When a future is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancel {
    /// Never.
    No,
    /// After so many polls.
    Polls(u32),
    /// After this long.
    After(Duration),
}

/// How a lock is to be held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// In which mode.
    pub mode: Mode,
    /// A release before this age takes effect only then.
    pub min_hold: Duration,
    /// For how long.
    pub ttl: Duration,
    /// Held no longer than this.
    pub max_hold: Option<Duration>,
}

/// How those who use a lock share it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// They do not.
    Alone,
    /// Readers with readers.
    ReadWrite,
    /// So many at a time.
    Permits(NonZeroU32),
}

impl Use {
    /// The mode of a request.
    fn mode(self, rng: &mut Rng) -> Mode {
        match self {
            Use::Alone => Mode::Exclusive,
            Use::ReadWrite if rng.chance(350) => Mode::Exclusive,
            Use::ReadWrite => Mode::Shared,
            Use::Permits(n) => Mode::Permit(n),
        }
    }

    /// The mode that most ask for.
    #[must_use]
    pub fn usual(self) -> Mode {
        match self {
            Use::Alone => Mode::Exclusive,
            Use::ReadWrite => Mode::Shared,
            Use::Permits(n) => Mode::Permit(n),
        }
    }
}

/// One operation of one application task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Asks for a lock; owner 0 is a new one.
    Acquire {
        /// Which lock.
        name: usize,
        /// Which owner.
        owner: usize,
        /// How it waits.
        how: How,
        /// Whether it is renewed.
        renew: bool,
        /// When its future is dropped.
        cancel: Cancel,
        /// The rest of what it asks for.
        wish: Wish,
    },
    /// Releases the newest guard.
    Release(Cancel),
    /// Drops the newest guard.
    Drop,
    /// Detaches the newest guard and leaves its ticket to whoever wants it.
    Detach,
    /// Takes up the newest ticket.
    Resume,
    /// Takes a lock away: from whoever holds it, at once or not.
    Force(usize, bool),
    /// Keeps what it has for a while.
    Hold(Duration),
    /// Closes its process's client.
    Close,
    /// Waits through one process, and goes on waiting with the same request through another.
    Move(usize, Duration),
    /// Asks at the seam for a while, then abandons the request; the first try of that is dropped.
    Abandon(usize, usize, Duration, u32),
}

/// Something that goes wrong, or merely happens, at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// An application task's thread stands still.
    StallTask(usize, Duration),
    /// The library's thread of a process stands still.
    StallLibrary(usize, Duration),
    /// A process is cut off.
    Cut(usize, Duration),
    /// A store, or one node, cannot be reached.
    Down(usize, Duration),
    /// A node restarts without its data.
    Restart(usize),
    /// A process is told that its holds may be gone. They are not.
    Doubt(usize),
    /// A process is told that it may have missed wake-ups.
    Everybody(usize),
    /// A process is killed: its tasks and its library's thread are gone at once.
    Kill(usize),
}

impl Trouble {
    /// A hint is no fault: nothing may be lost by it.
    #[must_use]
    pub fn is_hint(&self) -> bool {
        matches!(self, Trouble::Doubt(_) | Trouble::Everybody(_))
    }
}

/// One application task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Actor {
    /// In which process.
    pub process: usize,
    /// When it starts.
    pub at: Duration,
    /// What it does.
    pub ops: Vec<Op>,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The store's family.
    pub family: Family,
    /// Seeds the scheduler and the network.
    pub seed: u64,
    /// How many processes.
    pub processes: usize,
    /// How many locks.
    pub names: usize,
    /// How each of them is used.
    pub uses: [Use; 2],
    /// How long a lease lasts.
    pub ttl: Duration,
    /// What the network does.
    pub net: Net,
    /// How many out of a thousand spawns are preempted.
    pub preempts: u32,
    /// The application tasks.
    pub actors: Vec<Actor>,
    /// What goes wrong, and when.
    pub troubles: Vec<(Duration, Trouble)>,
    /// The clients are closed in the end, and not merely dropped.
    pub closes: bool,
}

const LONG: Duration = Duration::from_secs(100);

impl Program {
    /// The program of a seed.
    #[must_use]
    pub fn new(family: Family, seed: u64) -> Self {
        let rng = &mut Rng::new(seed ^ 0x00d1_5710);
        let calm = rng.chance(350);
        let long = rng.chance(600);
        let ttl = if long { LONG } else { Duration::from_millis(rng.pick(&[400, 1000, 3000])) };
        let processes = 1 + rng.below(3);
        let names = 1 + usize::from(rng.chance(300));
        let mut p = Self {
            family,
            seed: rng.bits(),
            processes,
            names,
            uses: [Use::Alone; 2],
            ttl,
            net: Net::default(),
            preempts: if calm { 0 } else { rng.pick(&[0, 50, 300]) },
            actors: Vec::new(),
            troubles: Vec::new(),
            closes: rng.chance(200),
        };
        if !calm {
            p.net = net(rng);
        }
        for _ in 0..2 + rng.below(4) {
            let (process, at) = (rng.below(processes), rng.up_to(&[1, 20, 300]));
            let most = rng.pick(&[3, 8]);
            let n = 1 + rng.below(most);
            let ops = (0..n).map(|_| p.op(rng)).collect();
            p.actors.push(Actor { process, at, ops });
        }
        let most = rng.pick(&[1, 3, 6]);
        for _ in 0..rng.below(most) {
            let trouble = p.trouble(rng);
            if !calm || trouble.is_hint() {
                p.troubles.push((rng.up_to(&[50, 1000, 5000]), trouble));
            }
        }
        p.widen(&mut Rng::new(seed ^ 0x57a6_e000));
        p.crowd(&mut Rng::new(seed ^ 0x00c0_8047));
        p
    }

    /// Modes, `min_hold`, TTLs that differ and killed processes: in some programs each. From chance
    /// of their own, so that the rest of a program stays as it is.
    fn widen(&mut self, rng: &mut Rng) {
        let leases = matches!(self.family, Family::Lease | Family::Queue);
        let two = NonZeroU32::MIN.saturating_add(1);
        for n in 0..self.names {
            self.uses[n] = match rng.below(10) {
                0..2 if leases => Use::ReadWrite,
                2..4 if leases => Use::Permits(two),
                _ => Use::Alone,
            };
        }
        let lingers = self.family != Family::Session && rng.chance(250);
        let differ = rng.chance(250);
        let (long, ttl, uses) = (self.is_long(), self.ttl, self.uses);
        for op in self.actors.iter_mut().flat_map(|a| &mut a.ops) {
            if let Op::Acquire { name, wish, .. } = op {
                wish.mode = uses[*name].mode(rng);
                if lingers && rng.chance(400) {
                    wish.min_hold = rng.up_to(&[50, 1000, 3000]);
                }
                if differ && rng.chance(500) {
                    wish.ttl = if long { ttl * 2 } else { ttl / 2 };
                }
            }
        }
        // One request that moves from one process to another lives in both.
        let moves = self.actors.iter().flat_map(|a| &a.ops).any(|op| matches!(op, Op::Move(..)));
        if self.processes > 1 && !moves && rng.chance(120) {
            let kill = Trouble::Kill(rng.below(self.processes));
            self.troubles.push((rng.up_to(&[50, 1000, 5000]), kill));
        }
    }

    /// Some programs are of crowds: several tasks of one process want one lock, as owners of their own,
    /// so that they hand it on among themselves. From chance of their own, likewise.
    fn crowd(&mut self, rng: &mut Rng) {
        if !matches!(self.family, Family::Lease | Family::Queue) || !rng.chance(500) {
            return;
        }
        let bounded = rng.chance(300);
        for actor in &mut self.actors {
            if rng.chance(700) {
                actor.process = 0;
            }
            for op in &mut actor.ops {
                let Op::Acquire { name, owner, how, renew, wish, .. } = op else { continue };
                if rng.chance(850) {
                    (*name, *owner, *renew) = (0, 0, true);
                    (wish.mode, wish.min_hold) = (Mode::Exclusive, Duration::ZERO);
                    if *how == How::Try {
                        *how = How::Forever;
                    }
                }
                if bounded && rng.chance(400) {
                    wish.max_hold = Some(Duration::from_millis(100) + rng.up_to(&[50, 1000, 5000]));
                }
            }
        }
        self.uses[0] = Use::Alone;
        for op in self.actors.iter_mut().flat_map(|a| &mut a.ops) {
            if let Op::Acquire { name: 0, wish, .. } = op {
                wish.mode = Mode::Exclusive;
            }
        }
    }

    fn op(&self, rng: &mut Rng) -> Op {
        let name = rng.below(self.names);
        let cancel = |rng: &mut Rng, n| match rng.chance(n) {
            false => Cancel::No,
            true if rng.chance(600) => Cancel::Polls(1 + u32::try_from(rng.below(8)).unwrap_or(0)),
            true => Cancel::After(rng.up_to(&[4, 50, 1000])),
        };
        let sessions = self.family == Family::Session;
        let detaches = matches!(self.family, Family::Lease | Family::Quorum);
        match rng.below(100) {
            0..45 => Op::Acquire {
                name,
                owner: rng.pick(&[0, 0, 1, 1, 2]),
                how: match rng.below(10) {
                    0..6 => How::Forever,
                    6..8 => How::Try,
                    _ => How::For(rng.up_to(&[5, 100, 800])),
                },
                renew: rng.chance(850),
                cancel: cancel(rng, 250),
                wish: Wish {
                    mode: Mode::Exclusive,
                    min_hold: Duration::ZERO,
                    ttl: self.ttl,
                    max_hold: None,
                },
            },
            45..60 => Op::Release(cancel(rng, 150)),
            60..68 => Op::Drop,
            68..84 => Op::Hold(rng.up_to(&[2, 20, 300, 2000])),
            84..88 if detaches => Op::Detach,
            88..92 if detaches => Op::Resume,
            92 => Op::Force(name, rng.chance(300)),
            93 => Op::Close,
            94..96 if self.family == Family::Lease => Op::Move(name, rng.millis(0, 20)),
            96..98 | 84..92 if rng.chance(if sessions { 1000 } else { 500 }) => Op::Abandon(
                name,
                rng.pick(&[0, 1]),
                rng.up_to(&[10, 100]),
                u32::try_from(1 + rng.below(3)).unwrap_or(1),
            ),
            _ => Op::Hold(rng.millis(0, 10)),
        }
    }

    fn trouble(&self, rng: &mut Rng) -> Trouble {
        let process = rng.below(self.processes);
        let d = rng.up_to(&[50, 1000, 6000]);
        match rng.below(12) {
            0..2 => Trouble::StallTask(rng.below(self.actors.len()), d),
            2..4 => Trouble::StallLibrary(process, d),
            4..6 => Trouble::Cut(process, d),
            6 => Trouble::Down(rng.below(5), d),
            7 if self.family == Family::Quorum => Trouble::Restart(rng.below(5)),
            8..10 => Trouble::Everybody(process),
            _ => Trouble::Doubt(process),
        }
    }

    /// Whether nothing ever goes wrong in it but the end of a process: then everything must be prompt
    /// and nothing is lost.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let calm = |t: &Trouble| t.is_hint() || matches!(t, Trouble::Kill(_));
        self.net.is_calm()
            && self.preempts == 0
            && self.troubles.iter().all(|(_, trouble)| calm(trouble))
    }

    /// Whether its leases are longer than anything in it.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.ttl == LONG
    }

    /// The longest of its leases.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let ops = self.actors.iter().flat_map(|a| &a.ops);
        let asked = ops.filter_map(|op| match op {
            Op::Acquire { wish, .. } => Some(wish.ttl),
            _ => None,
        });
        asked.max().unwrap_or_default().max(self.ttl)
    }

    /// How many leases may have to end one after the other, at most: of what was detached or taken
    /// away, or of a process that was killed.
    #[must_use]
    pub fn withholds(&self) -> u32 {
        let withholds = |op: &&Op| matches!(op, Op::Detach | Op::Force(..) | Op::Close);
        let ops = self.actors.iter().flat_map(|a| &a.ops).filter(withholds).count();
        3 + u32::try_from(ops).unwrap_or(0)
    }

    /// How large it is: what shrinking makes smaller.
    #[must_use]
    pub fn size(&self) -> usize {
        self.troubles.len()
            + self.actors.iter().map(|a| 1 + a.ops.len()).sum::<usize>()
            + usize::from(!self.net.is_calm())
    }
}

fn net(rng: &mut Rng) -> Net {
    let mut some = |most: &[u32]| if rng.chance(400) { rng.pick(most) } else { 0 };
    Net {
        lost: some(&[10, 60, 250]),
        mute: some(&[10, 60, 250]),
        breaks: some(&[10, 60, 250]),
        refused: some(&[10, 100]),
        slow: some(&[10, 60, 250]),
        twice: some(&[50, 300]),
        deaf: some(&[20, 300]),
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?}: {} processes, {} locks, TTL {:?}, {}",
            self.family,
            self.processes,
            self.names,
            self.ttl,
            if self.closes { "closed in the end" } else { "dropped in the end" }
        )?;
        if self.uses[..self.names].iter().any(|u| *u != Use::Alone) {
            writeln!(f, "  used as: {:?}", &self.uses[..self.names])?;
        }
        if !self.net.is_calm() || self.preempts > 0 {
            writeln!(f, "  per mille: {:?}, preempts: {}", self.net, self.preempts)?;
        }
        for (i, actor) in self.actors.iter().enumerate() {
            writeln!(f, "  task {i} in process {} from {:?}:", actor.process, actor.at)?;
            for op in &actor.ops {
                writeln!(f, "    {op:?}")?;
            }
        }
        for (at, trouble) in &self.troubles {
            writeln!(f, "  at {at:?}: {trouble:?}")?;
        }
        Ok(())
    }
}
