//! The laws, and what must be remembered to judge them.

use std::rc::Rc;
use std::time::Duration;

use distlock_core::clock::BootInstant;
use distlock_core::{Clock, Held, LossReason, Mode, Token};

use crate::program::{Family, Program, Use};
use crate::world::World;

/// How long after a killed process's leases have ended its locks must be obtainable: whoever waited in
/// it may be ahead of the others, for the time of a waiter's lease.
const TAKEN_OVER: Duration = Duration::from_secs(12);

/// How often those who wait are heard of at least.
const HEARTBEAT: Duration = Duration::from_millis(3400);

/// A law that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Which law.
    pub law: &'static str,
    /// How.
    pub how: String,
}

/// One hold, as its holder sees it.
pub struct View {
    pub(crate) name: usize,
    /// Who may share it: an owner, and the process where re-entry ends there.
    pub(crate) owner: String,
    pub(crate) process: usize,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) renewed: bool,
    /// How long it lasts without a renewal.
    pub(crate) ttl: Duration,
    /// When its `min_hold` ends, at the earliest.
    pub(crate) free_at: Option<BootInstant>,
    pub(crate) since: BootInstant,
    /// Its holder has begun to give it back.
    pub(crate) given: bool,
    /// It was given back while it was held.
    in_order: bool,
    /// It was valid when it was granted.
    counted: bool,
    /// It may be lost: somebody took it away, closed its client or took it up by its ticket.
    pub(crate) excused: bool,
    believed: Believed,
}

enum Believed {
    Guard(Held),
    /// A hold at the seam, which has nothing but its deadline.
    Until(BootInstant),
}

/// What is granted.
pub(crate) struct Granted {
    pub(crate) name: usize,
    pub(crate) owner: String,
    pub(crate) process: usize,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) renewed: bool,
    pub(crate) ttl: Duration,
    pub(crate) min_hold: Duration,
    pub(crate) held: Result<Held, BootInstant>,
}

/// See the module.
pub struct Laws {
    clock: Clock,
    world: Rc<World>,
    family: Family,
    calm: bool,
    uses: [Use; 2],
    longest: Duration,
    pub(crate) views: Vec<View>,
    /// By name: a lock was taken away at once, so two may believe that they hold it.
    pub(crate) loose: Vec<bool>,
    /// By name: taken away or detached; it need not be obtainable before its lease ends.
    pub(crate) withheld: Vec<bool>,
    /// By name: a `min_hold` may last until then.
    lingers: Vec<BootInstant>,
    /// By task: the lock it waits for, since when.
    waiting: Vec<Option<(usize, BootInstant)>>,
    /// By name: since when nobody holds it.
    idle: Vec<Option<BootInstant>>,
    /// A process was killed: when all that it had must have ended.
    pub(crate) killed: Option<BootInstant>,
    pub(crate) broken: Option<Broken>,
}

impl Laws {
    pub(crate) fn new(world: Rc<World>, program: &Program) -> Self {
        let (names, clock) = (program.names, world.clock.clone());
        Self {
            family: program.family,
            calm: program.is_calm(),
            uses: program.uses,
            longest: program.longest(),
            views: Vec::new(),
            loose: vec![false; names],
            withheld: vec![false; names],
            lingers: vec![clock.now(); names],
            waiting: vec![None; program.actors.len()],
            idle: vec![None; names],
            killed: None,
            broken: None,
            clock,
            world,
        }
    }

    pub(crate) fn fail(&mut self, law: &'static str, how: String) {
        self.broken.get_or_insert(Broken { law, how });
    }

    /// Somebody holds a lock from now on. Validity never comes back, so two holders overlap if and
    /// only if the first is still valid at the moment when the second comes.
    pub(crate) fn granted(&mut self, new: Granted) -> usize {
        let now = self.clock.now();
        let Granted { name, owner, process, token, mode, renewed, ttl, min_hold, held } = new;
        let believed = match held {
            Ok(held) => Believed::Guard(held),
            Err(until) => Believed::Until(until),
        };
        self.may_linger(name, min_hold);
        let mut view = View {
            name,
            owner,
            process,
            token,
            mode,
            renewed,
            ttl,
            free_at: None,
            since: now,
            given: false,
            in_order: false,
            counted: false,
            excused: false,
            believed,
        };
        view.free_at = self.free_at(&view, min_hold, now);
        // One that was preempted on its way may find that its lease has ended.
        view.counted = view.valid(now);
        if view.counted {
            self.idle[name] = None;
        }
        if view.counted && !self.loose[name] {
            self.alone(&view, now);
            self.in_token_order(&view);
        }
        self.views.push(view);
        self.views.len() - 1
    }

    /// When a `min_hold` ends, at the earliest. The store counts it from the grant, which came after
    /// the question whose answer the lease counts from; a line counts it from the answer.
    fn free_at(&self, view: &View, min_hold: Duration, now: BootInstant) -> Option<BootInstant> {
        let Believed::Guard(held) = &view.believed else { return None };
        let stood = !self.world.stalls(view.process).is_zero();
        match self.family {
            // It may have been renewed before its holder came to look at it.
            _ if min_hold.is_zero() || stood => None,
            Family::Queue => Some(now.plus(min_hold)),
            _ => Some(now.plus(held.remaining()).minus(view.ttl).plus(min_hold)),
        }
    }

    /// Nobody else holds the lock in a way that excludes this one.
    fn alone(&mut self, new: &View, now: BootInstant) {
        let excludes = |v: &&View| {
            let differs = v.name == new.name && v.token != new.token;
            differs && (v.mode, new.mode) != (Mode::Shared, Mode::Shared)
        };
        let lingers = |v: &&View| self.lingering(v, now);
        let broken = |law, other: &View| {
            let how = format!(
                "lock {}: process {} holds it with token {} while process {} holds it with token {}",
                new.name, new.process, new.token, other.process, other.token
            );
            Broken { law, how }
        };
        let most = match new.mode {
            Mode::Permit(n) => n.get() as usize,
            _ => 1,
        };
        let mut tokens: Vec<Token> = Vec::new();
        let others = self.views.iter().filter(excludes);
        let valid = others.clone().filter(|v| v.valid(now)).map(|v| ("two holders", v));
        let lingering = others.filter(lingers).map(|v| ("a min_hold is kept", v));
        let mut found = None;
        for (law, v) in valid.chain(lingering) {
            if !tokens.contains(&v.token) {
                tokens.push(v.token);
            }
            if tokens.len() >= most {
                found = Some(broken(law, v));
                break;
            }
        }
        if let Some(Broken { law, how }) = found {
            self.fail(law, how);
        }
    }

    /// Tokens rise from each holder to the next that it excludes; and one token is of one owner.
    fn in_token_order(&mut self, new: &View) {
        let wrong = |v: &&View| {
            let together = v.mode == new.mode && v.mode != Mode::Exclusive;
            v.name == new.name
                && match v.token == new.token {
                    true => v.owner != new.owner,
                    false => v.counted && v.token > new.token && !together,
                }
        };
        if let Some(last) = self.views.iter().find(wrong).map(|v| v.token) {
            let how = format!("lock {}: token {} after {last}", new.name, new.token);
            self.fail("tokens rise", how);
        }
    }

    /// Whether a hold that was given back must still keep others out.
    fn lingering(&self, v: &View, now: BootInstant) -> bool {
        v.in_order
            && v.free_at.is_some_and(|end| now < end)
            && !v.excused
            && !self.withheld[v.name]
            && !self.world.troubled(v.process)
            && !self.world.dead(v.process)
    }

    /// A `min_hold` that begins about now may keep the lock.
    pub(crate) fn may_linger(&mut self, name: usize, min_hold: Duration) {
        let mut end = self.clock.now().plus(min_hold);
        if self.family != Family::Queue && !min_hold.is_zero() {
            // Whoever waits was told of a later end, and asks with its next heartbeat.
            end = end.plus(HEARTBEAT);
        }
        self.lingers[name] = self.lingers[name].max(end);
    }

    /// Whether a `min_hold` may keep some lock.
    pub(crate) fn lingers(&self) -> bool {
        self.lingers.iter().any(|end| *end > self.clock.now())
    }

    /// Its holder gives it back.
    pub(crate) fn gives(&mut self, view: usize) {
        let now = self.clock.now();
        let v = &mut self.views[view];
        (v.given, v.in_order) = (true, v.valid(now));
    }

    /// A process was killed, with these tasks.
    pub(crate) fn kill(&mut self, process: usize, tasks: impl Iterator<Item = usize>) {
        for v in self.views.iter_mut().filter(|v| v.process == process) {
            (v.given, v.excused) = (true, true);
        }
        tasks.for_each(|task| self.waiting[task] = None);
        self.killed = Some(self.clock.now().plus(self.longest + TAKEN_OVER));
    }

    /// A task begins to wait for a lock, or ends it.
    pub(crate) fn waits(&mut self, task: usize, name: Option<usize>) {
        let now = self.clock.now();
        self.waiting[task] = name.map(|n| (n, now));
    }

    /// Whatever is held of this lock, or in this process, may be lost.
    pub(crate) fn excuse(&mut self, name: Option<usize>, process: Option<usize>) {
        for v in &mut self.views {
            let meant = name.is_none_or(|n| v.name == n) && process.is_none_or(|p| v.process == p);
            v.excused |= meant;
        }
    }

    /// A holder has the same hold by another guard now.
    pub(crate) fn shared_by_ticket(&mut self, token: Token) {
        self.views.iter_mut().filter(|v| v.token == token).for_each(|v| v.excused = true);
    }

    /// Looked at after each step.
    pub(crate) fn step(&mut self, troubled: impl Fn(usize) -> bool) {
        let now = self.clock.now();
        for i in 0..self.views.len() {
            let v = &self.views[i];
            if v.given {
                continue;
            }
            if !v.renewed && now.since(v.since) > v.ttl {
                if v.valid(now) {
                    let (name, process) = (v.name, v.process);
                    let how = format!(
                        "lock {name}: process {process} still holds it {:?} after a grant without \
                         renewal, TTL {:?}",
                        now.since(v.since),
                        v.ttl
                    );
                    self.fail("no renewal, no longer than a TTL", how);
                }
                self.views[i].given = true;
                continue;
            }
            if v.excused || self.withheld[v.name] || troubled(v.process) || !v.renewed {
                continue;
            }
            if let Some(why) = v.lost() {
                let (name, process, token) = (v.name, v.process, v.token);
                let how = format!("lock {name}: process {process} lost token {token}: {why:?}");
                self.fail("no loss without a reason", how);
            }
        }
    }

    /// Looked at when time passes: in a calm program a lock is never idle while somebody waits.
    pub(crate) fn idle(&mut self) {
        if !self.calm {
            return;
        }
        let now = self.clock.now();
        let most = match self.family {
            Family::Quorum => Duration::from_millis(2500),
            _ => Duration::from_millis(300),
        } + self.longest.min(Duration::from_secs(3)) / 8;
        for name in 0..self.idle.len() {
            let full = self.holders(name, now) >= self.room(name);
            if full || self.withheld[name] {
                self.idle[name] = None;
                continue;
            }
            let since = *self.idle[name].get_or_insert(now);
            let since = since.max(self.lingers[name]).max(self.killed.unwrap_or(since));
            let waits = self.waiting.iter().flatten().filter(|w| w.0 == name).map(|w| w.1).min();
            let Some(waits) = waits else { continue };
            let idle = now.since(since.max(waits));
            if idle > most {
                let how = format!("lock {name}: nobody has held it for {idle:?}, and a task waits");
                self.fail("never idle while somebody waits", how);
            }
        }
    }
}

impl Laws {
    /// How many hold a lock.
    fn holders(&self, name: usize, now: BootInstant) -> usize {
        let mut tokens: Vec<Token> = Vec::new();
        for v in self.views.iter().filter(|v| v.name == name) {
            if !tokens.contains(&v.token) && v.valid(now) {
                tokens.push(v.token);
            }
        }
        tokens.len()
    }

    /// How many hold it, at least, while somebody waits. A reader may wait for a writer who waits.
    fn room(&self, name: usize) -> usize {
        match self.uses[name] {
            Use::Permits(n) => n.get() as usize,
            Use::Alone | Use::ReadWrite => 1,
        }
    }
}

impl View {
    pub(crate) fn valid(&self, now: BootInstant) -> bool {
        match &self.believed {
            Believed::Guard(held) => held.check().is_ok(),
            Believed::Until(until) => !self.given && now < *until,
        }
    }

    fn lost(&self) -> Option<LossReason> {
        match &self.believed {
            Believed::Guard(held) => held.check().err().map(|lost| lost.why),
            Believed::Until(_) => None,
        }
    }
}
