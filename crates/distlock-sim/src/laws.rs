//! The laws, and what must be remembered to judge them.

use std::time::Duration;

use distlock_core::clock::BootInstant;
use distlock_core::{Clock, Held, Token, Why};

use crate::program::Family;

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
    pub(crate) renewed: bool,
    pub(crate) since: BootInstant,
    /// Its holder has begun to give it back.
    pub(crate) given: bool,
    /// It may be lost: somebody took it away, closed its client or took it up by its ticket.
    pub(crate) excused: bool,
    believed: Believed,
}

enum Believed {
    Guard(Held),
    /// A hold at the seam, which has nothing but its deadline.
    Until(BootInstant),
}

/// See the module.
pub struct Laws {
    clock: Clock,
    family: Family,
    calm: bool,
    ttl: Duration,
    pub(crate) views: Vec<View>,
    /// By name: the last token and its owner.
    last: Vec<Option<(Token, String)>>,
    /// By name: a lock was taken away at once, so two may believe that they hold it.
    pub(crate) loose: Vec<bool>,
    /// By name: taken away or detached; it need not be obtainable before its lease ends.
    pub(crate) withheld: Vec<bool>,
    /// By task: the lock it waits for, since when.
    waiting: Vec<Option<(usize, BootInstant)>>,
    /// By name: since when nobody holds it.
    idle: Vec<Option<BootInstant>>,
    pub(crate) broken: Option<Broken>,
}

impl Laws {
    pub(crate) fn new(
        clock: Clock,
        family: Family,
        calm: bool,
        ttl: Duration,
        names: usize,
        tasks: usize,
    ) -> Self {
        Self {
            clock,
            family,
            calm,
            ttl,
            views: Vec::new(),
            last: vec![None; names],
            loose: vec![false; names],
            withheld: vec![false; names],
            waiting: vec![None; tasks],
            idle: vec![None; names],
            broken: None,
        }
    }

    pub(crate) fn fail(&mut self, law: &'static str, how: String) {
        self.broken.get_or_insert(Broken { law, how });
    }

    /// Somebody holds a lock from now on. Validity never comes back, so two holders overlap if and
    /// only if the first is still valid at the moment when the second comes.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn granted(
        &mut self,
        name: usize,
        owner: String,
        process: usize,
        token: Token,
        renewed: bool,
        held: Result<Held, BootInstant>,
    ) -> usize {
        let now = self.clock.now();
        let believed = match held {
            Ok(held) => Believed::Guard(held),
            Err(until) => Believed::Until(until),
        };
        let (given, excused) = (false, false);
        let view =
            View { name, owner, process, token, renewed, since: now, given, excused, believed };
        // One that was preempted on its way may find that its lease has ended.
        let valid = view.valid(now);
        if valid && !self.loose[name] {
            let both = |v: &&View| v.name == name && v.token != token && v.valid(now);
            if let Some(other) = self.views.iter().find(both) {
                let how = format!(
                    "lock {name}: process {process} holds it with token {token} while process {} \
                     holds it with token {}",
                    other.process, other.token
                );
                self.fail("two holders", how);
            }
            if let Some((last, by)) = &self.last[name] {
                let again = *last == token && *by == view.owner;
                if token <= *last && !again {
                    let how = format!("lock {name}: token {token} after {last}");
                    self.fail("tokens rise", how);
                }
            }
        }
        if valid {
            self.last[name] = Some((token, view.owner.clone()));
        }
        self.views.push(view);
        self.views.len() - 1
    }

    /// Its holder gives it back.
    pub(crate) fn gives(&mut self, view: usize) {
        self.views[view].given = true;
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
            if !v.renewed && now.since(v.since) > self.ttl {
                if v.valid(now) {
                    let (name, process) = (v.name, v.process);
                    let how = format!(
                        "lock {name}: process {process} still holds it {:?} after a grant without \
                         renewal, TTL {:?}",
                        now.since(v.since),
                        self.ttl
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
        } + self.ttl.min(Duration::from_secs(3)) / 8;
        for name in 0..self.idle.len() {
            let held = self.views.iter().any(|v| v.name == name && v.valid(now));
            if held || self.withheld[name] {
                self.idle[name] = None;
                continue;
            }
            let since = *self.idle[name].get_or_insert(now);
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

impl View {
    pub(crate) fn valid(&self, now: BootInstant) -> bool {
        match &self.believed {
            Believed::Guard(held) => held.check().is_ok(),
            Believed::Until(until) => !self.given && now < *until,
        }
    }

    fn lost(&self) -> Option<Why> {
        match &self.believed {
            Believed::Guard(held) => held.check().err().map(|lost| lost.why),
            Believed::Until(_) => None,
        }
    }
}
