//! One lock, one clock, and short words for asking it: what the examples are written in.

use std::num::NonZeroU32;
use std::time::Duration;

use distlock_core::backend::Force;
use distlock_core::state::{Claim, Effects, LockState, Micros, Now, Op, Pulse, Reply, Rules};
use distlock_core::{Label, Mode, Owner, ReqId, Token};

/// The request of a number.
pub(crate) fn req(n: u8) -> ReqId {
    ReqId::from_bytes([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n])
}

/// Seconds.
pub(crate) const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Milliseconds.
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A number that is not zero.
pub(crate) fn nz(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("not zero")
}

/// Request `n` of an owner: exclusive, ten seconds, nothing special.
pub(crate) fn claim(n: u8, owner: &str) -> Claim {
    Claim {
        req: req(n),
        owner: Owner::named(owner).expect("a valid owner"),
        mode: Mode::Exclusive,
        ttl: s(10),
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new(""),
        block: NonZeroU32::MIN,
        via: String::new(),
    }
}

/// The same claim in another mode.
pub(crate) fn mode(n: u8, owner: &str, mode: Mode) -> Claim {
    Claim { mode, ..claim(n, owner) }
}

/// A grant as the examples compare it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) token: u64,
    pub(crate) block: u32,
    pub(crate) left: Duration,
    pub(crate) floor: u64,
}

/// One lock and its clock, which starts at ten thousand seconds on both faces.
pub(crate) struct Desk {
    pub(crate) state: LockState,
    pub(crate) now: Now,
    pub(crate) rules: Rules,
    pub(crate) effects: Effects,
}

impl Default for Desk {
    fn default() -> Self {
        let start = Micros(10_000_000_000);
        Self {
            state: LockState::default(),
            now: Now { lease: start, wall: start },
            rules: Rules::default(),
            effects: Effects::default(),
        }
    }
}

impl Desk {
    pub(crate) fn step(&mut self, op: &Op) -> Reply {
        let step = self.state.step(op, self.now, &self.rules);
        self.effects = step.effects;
        step.reply
    }

    /// Time passes, on both faces.
    pub(crate) fn pass(&mut self, d: Duration) -> &mut Self {
        self.now = Now { lease: self.now.lease.plus(d), wall: self.now.wall.plus(d) };
        self
    }

    /// Asks and stands in line, for ten seconds of silence.
    pub(crate) fn ask(&mut self, claim: &Claim) -> Reply {
        self.step(&Op::Acquire { claim: claim.clone(), wait: Some(s(10)) })
    }

    /// Asks and does not stand in line.
    pub(crate) fn attempt(&mut self, claim: &Claim) -> Reply {
        self.step(&Op::Acquire { claim: claim.clone(), wait: None })
    }

    /// Asks, and is granted.
    pub(crate) fn take(&mut self, claim: &Claim) -> Granted {
        granted(self.ask(claim))
    }

    pub(crate) fn beat(&mut self, n: u8) -> Pulse {
        match self.step(&Op::Heartbeat { req: req(n), wait: s(10) }) {
            Reply::Pulse(pulse) => pulse,
            other => panic!("a heartbeat was answered {other:?}"),
        }
    }

    pub(crate) fn renew(&mut self, n: u8) -> Reply {
        self.step(&Op::Renew { req: req(n), ttl: s(10) })
    }

    pub(crate) fn release(&mut self, n: u8) -> Reply {
        self.step(&Op::Release { req: req(n) })
    }

    pub(crate) fn cancel(&mut self, n: u8) -> Reply {
        self.step(&Op::Cancel { req: req(n) })
    }

    pub(crate) fn force(&mut self, token: Option<u64>, how: Force) -> Reply {
        let token = token.map(|t| Token::new(t).expect("a valid token"));
        self.step(&Op::Force { token, how })
    }

    pub(crate) fn withdraw(&mut self, n: u8, gone: bool) -> Reply {
        self.step(&Op::Withdraw { req: req(n), gone })
    }

    pub(crate) fn settle(&mut self) -> Reply {
        self.step(&Op::Settle)
    }

    /// Who has been promoted by the last step.
    pub(crate) fn turns(&self) -> Vec<u8> {
        self.effects.turns.iter().map(|(r, _)| number(r)).collect()
    }

    /// Who stands in line, first to last.
    pub(crate) fn line(&self) -> Vec<u8> {
        self.state.queue.iter().map(|w| number(&w.claim.req)).collect()
    }

    /// Who holds, in the order of the grants.
    pub(crate) fn holders(&self) -> Vec<u8> {
        self.state.holds.iter().map(|h| number(&h.claim.req)).collect()
    }
}

/// The number of a request.
pub(crate) fn number(req: &ReqId) -> u8 {
    req.as_bytes()[15]
}

/// Expects a grant.
pub(crate) fn granted(reply: Reply) -> Granted {
    match reply {
        Reply::Granted { token, block, remaining, floor, .. } => {
            let (token, floor) = (token.get(), floor.get());
            Granted { token, block: block.get(), left: remaining, floor }
        }
        other => panic!("not granted: {other:?}"),
    }
}

/// Expects a place in line, and tells how many are ahead.
pub(crate) fn waiting(reply: Reply) -> u32 {
    match reply {
        Reply::Waiting { ahead, .. } => ahead,
        other => panic!("not in line: {other:?}"),
    }
}

/// Expects a refusal to wait, and tells how many stand in line.
pub(crate) fn busy(reply: Reply) -> u32 {
    match reply {
        Reply::Busy { ahead, .. } => ahead,
        other => panic!("not busy: {other:?}"),
    }
}
