//! An application task: it does what its program says through the library's public calls.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use distlock_core::backend::{Ask, Attempt, Key};
use distlock_core::clock::BootInstant;
use distlock_core::label::Label;
use distlock_core::{Force, Guard, Kind, Mode, Owner, Patience, Released, ReqId};

use crate::laws::Granted;
use crate::program::{Actor, Cancel, Family, How, Op, Trouble, Use, Wish};
use crate::stage::Stage;

/// A call may take this much longer than it was told to, over a network whose answers take a few
/// milliseconds when they come at all.
const SLACK: Duration = Duration::from_millis(1500);
/// One request; a release is three.
const REQUEST: Duration = Duration::from_secs(11);
const RELEASE: Duration = Duration::from_secs(33);
/// Closing gives everything back. It gives up when nothing was acknowledged for five seconds, and ends
/// a second later.
const CLOSE: Duration = Duration::from_millis(6100);

pub(crate) struct Acting {
    stage: Rc<Stage>,
    me: usize,
    process: usize,
    guards: RefCell<Vec<(Guard, usize)>>,
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

pub(crate) async fn act(stage: Rc<Stage>, me: usize) {
    let actor = stage.program.actors[me].clone();
    let acting =
        Acting { stage: stage.clone(), me, process: actor.process, guards: RefCell::default() };
    stage.world.clock.sleep(actor.at).await;
    for op in actor.ops {
        acting.doing(|| format!("{op:?}"));
        acting.run(op).await;
        if stage.laws.borrow().broken.is_some() {
            return;
        }
    }
    while !acting.guards.borrow().is_empty() {
        acting.doing(|| "gives back the last of its guards".to_owned());
        acting.release(Cancel::No).await;
    }
    acting.doing(String::new);
    stage.running.borrow_mut()[me] = false;
}

impl Acting {
    fn doing(&self, what: impl FnOnce() -> String) {
        let stage = &self.stage;
        let what = what();
        stage.world.note(|| format!("task {}: {what}", self.me));
        stage.doing.borrow_mut()[self.me] = what;
    }

    fn note(&self, what: impl FnOnce() -> String) {
        self.stage.world.note(|| format!("task {}: … {}", self.me, what()));
    }

    fn now(&self) -> BootInstant {
        self.stage.world.clock.now()
    }

    /// A call has ended: in time?
    fn bounded(&self, what: &str, since: BootInstant, bound: Duration) {
        let took = self.now().since(since);
        if took > bound + self.stage.world.stalls(self.process) {
            let how = format!("task {}: {what} took {took:?}, more than {bound:?}", self.me);
            self.stage.laws.borrow_mut().fail("every call ends in its time", how);
        }
    }

    /// Runs a future until it is done or dropped.
    async fn until<T>(&self, cancel: Cancel, mut work: Boxed<'_, T>) -> Option<T> {
        match cancel {
            Cancel::No => Some(work.await),
            Cancel::After(d) => self.stage.world.clock.timeout(d, work).await,
            Cancel::Polls(most) => {
                let mut polls = 0;
                let done = poll_fn(|cx| {
                    polls += 1;
                    match work.as_mut().poll(cx) {
                        Poll::Ready(value) => Poll::Ready(Some(value)),
                        Poll::Pending if polls >= most => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    }
                })
                .await;
                drop(work);
                done
            }
        }
    }

    async fn run(&self, op: Op) {
        match op {
            Op::Acquire { name, owner, how, renew, cancel, wish } => {
                self.acquire(name, owner, how, renew, cancel, wish).await;
            }
            Op::Release(cancel) => self.release(cancel).await,
            Op::Drop => {
                let newest = self.guards.borrow_mut().pop();
                if let Some((guard, view)) = newest {
                    self.stage.laws.borrow_mut().gives(view);
                    drop(guard);
                }
            }
            Op::Detach => self.detach(),
            Op::Resume => self.resume().await,
            Op::Force(name, at_once) => self.force(name, at_once).await,
            Op::Hold(d) => self.stage.world.clock.sleep(d).await,
            Op::Close => {
                self.stage.laws.borrow_mut().excuse(None, Some(self.process));
                self.stage.closed.borrow_mut()[self.process] = true;
                let since = self.now();
                let _ = self.stage.locks(self.process).close().await;
                let heard = self.stage.world.answered(self.process);
                self.bounded("close", since.max(heard), CLOSE);
                // Closing gives up on a store that does not answer: the rest is left to its lease.
                // So is what the client of a line or of a quorum keeps for a `min_hold`.
                let mut laws = self.stage.laws.borrow_mut();
                let keeps = self.stage.program.family != Family::Lease && laws.lingers();
                if self.stage.world.troubled(self.process) || keeps {
                    laws.withheld.fill(true);
                }
            }
            Op::Move(name, d) => self.moves(name, d).await,
            Op::Abandon(name, owner, d, polls) => self.abandon(name, owner, d, polls).await,
        }
    }

    /// Who may share a hold: its owner, as far as re-entry reaches.
    fn owner(&self, owner: usize) -> (Option<Owner>, String) {
        match owner {
            0 => (None, ReqId::random().to_string()),
            n => {
                let owner = self.stage.owners[n].clone();
                let key = match self.stage.program.family {
                    Family::Lease => owner.to_string(),
                    _ => format!("{owner} of {}", self.process),
                };
                (Some(owner), key)
            }
        }
    }

    async fn acquire(
        &self,
        name: usize,
        owner: usize,
        how: How,
        renew: bool,
        cancel: Cancel,
        wish: Wish,
    ) {
        let stage = &self.stage;
        let (owner, key) = self.owner(owner);
        let how = self.patience(name, &key, wish.mode, how);
        let lock = stage.locks(self.process).lock(stage.names[name].name.as_str());
        let mut lock = lock.mode(wish.mode).min_hold(wish.min_hold).ttl(wish.ttl);
        if let Some(owner) = &owner {
            lock = lock.owner(owner);
        }
        if let Some(max_hold) = wish.max_hold {
            lock = lock.max_hold(max_hold);
        }
        if !renew {
            lock = lock.without_renewal();
        }
        let (since, stalls) = (self.now(), stage.world.stalls(self.process));
        stage.laws.borrow_mut().waits(self.me, Some(name));
        let work: Boxed<'_, _> = match how {
            How::Forever => Box::pin(async { lock.acquire().await.map(Ok) }),
            How::Try => Box::pin(lock.try_acquire()),
            How::For(d) => Box::pin(lock.try_acquire_for(d)),
        };
        let answer = self.until(cancel, work).await;
        stage.laws.borrow_mut().waits(self.me, None);
        stage.laws.borrow_mut().may_linger(name, wish.min_hold);
        match how {
            How::Forever => {}
            How::Try => self.bounded("try_acquire", since, REQUEST + SLACK),
            How::For(d) => self.bounded("try_acquire_for", since, d + SLACK),
        }
        match answer {
            None => self.note(|| "dropped".to_owned()),
            Some(Err(e)) => {
                self.note(|| format!("{e}"));
                let kind = e.kind();
                let stood = !stage.world.stalls(self.process).is_zero();
                // An owner that holds the lock in another mode would wait for itself.
                let modes = stage.program.uses[name] == Use::ReadWrite && owner.is_some();
                let excused = kind == Kind::Closed
                    || (kind == Kind::Usage && modes)
                    || stood
                    || stage.world.troubled(self.process);
                let revoked = stage.laws.borrow().withheld[name];
                if !excused && !revoked {
                    let how = format!("task {}: {e}", self.me);
                    stage.laws.borrow_mut().fail("no error without a reason", how);
                }
            }
            Some(Ok(Err(_))) => self.note(|| "busy".to_owned()),
            Some(Ok(Ok(guard))) => {
                // `max_hold` cuts a lease; whether it does so in time is not this law's question.
                if wish.max_hold.is_none() {
                    self.worth_its_lease(name, &guard);
                }
                // Its thread stood still with the answer in hand, for most of the lease: that may end
                // before its first renewal is answered.
                let stood = stage.world.stalls(self.process) > stalls;
                let late = stood && guard.remaining() < guard.ttl() / 10;
                // Its lease ends by itself, and those behind the next in line learn that by a heartbeat.
                stage.laws.borrow_mut().may_linger(name, wish.max_hold.unwrap_or_default());
                let view = self.granted(name, key, renew, wish, guard);
                stage.laws.borrow_mut().views[view].excused |= late || wish.max_hold.is_some();
            }
        }
    }

    /// A grant that is new is worth its lease, also one that shares an older hold: two thirds of it at
    /// least, since a session is renewed every third.
    fn worth_its_lease(&self, name: usize, guard: &Guard) {
        let (world, ttl) = (&self.stage.world, guard.ttl());
        let stood = !world.stalls(self.process).is_zero();
        if stood || world.troubled(self.process) || guard.check().is_err() {
            return;
        }
        let (left, least) = (guard.remaining(), ttl / 2);
        if left < least {
            let how = format!("lock {name}: a grant with {left:?} left of {ttl:?}");
            self.stage.laws.borrow_mut().fail("a grant is worth its lease", how);
        }
    }

    /// Whoever holds something waits for nothing else without end: two such tasks would wait for
    /// each other, and that would be no fault of the library's.
    fn patience(&self, name: usize, owner: &str, mode: Mode, how: How) -> How {
        let laws = self.stage.laws.borrow();
        let guards = self.guards.borrow();
        let again = |(_, view): &(Guard, usize)| {
            let v = &laws.views[*view];
            v.name == name && v.owner == owner && v.mode == mode && v.valid(self.now())
        };
        match how {
            How::Forever
                if !guards.is_empty() && (laws.withheld[name] || !guards.iter().any(again)) =>
            {
                How::For(Duration::from_millis(400))
            }
            how => how,
        }
    }

    fn granted(
        &self,
        name: usize,
        owner: String,
        renewed: bool,
        wish: Wish,
        guard: Guard,
    ) -> usize {
        let stage = &self.stage;
        self.note(|| format!("granted with token {}", guard.token()));
        // A ticket takes its hold out of the hand-over: only where hints need to name it.
        let hints = stage.program.troubles.iter().any(|(_, t)| matches!(t, Trouble::Doubt(_)));
        if hints && stage.program.family != Family::Queue {
            let ticket = guard.ticket();
            let key = Key { lock: ticket.lock, req: ticket.req };
            stage.held.borrow_mut().push((self.process, key));
        }
        let mut laws = stage.laws.borrow_mut();
        let view = laws.granted(Granted {
            name,
            owner,
            process: self.process,
            token: guard.token(),
            mode: wish.mode,
            renewed,
            ttl: guard.ttl(),
            min_hold: wish.min_hold,
            held: Ok(guard.held()),
        });
        if stage.closed.borrow()[self.process] {
            laws.excuse(None, Some(self.process));
        }
        self.guards.borrow_mut().push((guard, view));
        view
    }

    async fn release(&self, cancel: Cancel) {
        let Some((guard, view)) = self.guards.borrow_mut().pop() else { return };
        let (held, since) = (guard.check().is_ok(), self.now());
        self.stage.laws.borrow_mut().gives(view);
        let answer = self.until(cancel, Box::pin(guard.release())).await;
        self.bounded("release", since, RELEASE);
        // Nor is a hold renewed for a task that stands still while it gives it back.
        let stood = !self.stage.world.stalls(self.process).is_zero();
        let troubled = stood || self.stage.world.troubled(self.process);
        let mut laws = self.stage.laws.borrow_mut();
        let v = &laws.views[view];
        let excused =
            v.excused || laws.withheld[v.name] || !v.renewed || troubled || laws.loose[v.name];
        self.note(|| format!("{answer:?}"));
        match answer {
            Some(Ok(Released::WasLost)) if held && !excused => {
                let how = format!("task {}: a release found the lock lost", self.me);
                laws.fail("no loss without a reason", how);
            }
            Some(Err(e)) if !excused => {
                let how = format!("task {}: release: {e}", self.me);
                laws.fail("no error without a reason", how);
            }
            _ => {}
        }
    }

    fn detach(&self) {
        let Some((guard, view)) = self.guards.borrow_mut().pop() else { return };
        let mut laws = self.stage.laws.borrow_mut();
        laws.gives(view);
        let v = &laws.views[view];
        let (name, owner, mode) = (v.name, v.owner.clone(), v.mode);
        laws.withheld[name] = true;
        drop(laws);
        if let Ok(ticket) = guard.detach() {
            self.stage.tickets.borrow_mut().push((name, owner, mode, ticket));
        }
    }

    async fn resume(&self) {
        let Some((name, owner, mode, ticket)) = self.stage.tickets.borrow_mut().pop() else {
            return;
        };
        let locks = self.stage.locks(self.process);
        let resumed = locks.resume(&ticket).await;
        match resumed {
            Ok(guard) => {
                self.stage.laws.borrow_mut().shared_by_ticket(ticket.token);
                let wish =
                    Wish { mode, min_hold: Duration::ZERO, ttl: guard.ttl(), max_hold: None };
                let _ = self.granted(name, owner, true, wish, guard);
            }
            Err(e) => self.note(|| format!("{e}")),
        }
    }

    async fn force(&self, name: usize, at_once: bool) {
        let how = if at_once { Force::Now } else { Force::Revoke };
        let locks = self.stage.locks(self.process);
        {
            let mut laws = self.stage.laws.borrow_mut();
            laws.excuse(Some(name), None);
            laws.withheld[name] = true;
            // A session ends at once, whatever was asked for.
            laws.loose[name] |= at_once || self.stage.program.family == Family::Session;
        }
        let since = self.now();
        let forced = locks.force(self.stage.names[name].name.as_str(), None, how).await;
        self.note(|| format!("{forced:?}"));
        self.stage.laws.borrow_mut().excuse(Some(name), None);
        self.bounded("force", since, REQUEST * 4);
    }

    fn ask(&self, name: usize, owner: Option<Owner>, patience: Patience) -> Ask {
        Ask {
            lock: self.stage.names[name].clone(),
            req: ReqId::random(),
            owner: owner.unwrap_or_else(Owner::new),
            mode: self.stage.program.uses[name].usual(),
            ttl: self.stage.program.ttl,
            patience,
            min_hold: Duration::ZERO,
            lock_delay: Duration::ZERO,
            label: Label::new("sim"),
            block: NonZeroU32::MIN,
        }
    }

    /// One request, through one process and then through another.
    async fn moves(&self, name: usize, d: Duration) {
        let stage = &self.stage;
        let other = (self.process + 1) % stage.program.processes;
        // A backend that is closed beneath its request serves it no more: a client would have
        // refused it.
        let closes = |a: &Actor| {
            a.ops.contains(&Op::Close) && (a.process == other || a.process == self.process)
        };
        if stage.program.actors.iter().any(closes) || !self.guards.borrow().is_empty() {
            return;
        }
        let ask = self.ask(name, None, Patience::Forever);
        let clock = &stage.world.clock;
        let here = stage.locks(self.process).backend().clone();
        let there = stage.locks(other).backend().clone();
        stage.laws.borrow_mut().waits(self.me, Some(name));
        let mut answer = clock.timeout(d, here.acquire(Arc::new(ask.clone()), None)).await;
        let mut backend = &here;
        if answer.is_none() {
            // Not before the first question has arrived: the store believes the last it hears of.
            clock.sleep(Duration::from_millis(50)).await;
            self.note(|| format!("goes on through process {other}"));
            backend = &there;
            let most = Duration::from_secs(200);
            answer =
                stage.world.clock.timeout(most, there.acquire(Arc::new(ask.clone()), None)).await;
        }
        stage.laws.borrow_mut().waits(self.me, None);
        self.seam(name, &ask, answer, backend, None).await;
    }

    async fn abandon(&self, name: usize, owner: usize, d: Duration, polls: u32) {
        let stage = &self.stage;
        if stage.closed.borrow()[self.process] {
            return;
        }
        let (owner, _) = self.owner(owner);
        let ask = self.ask(name, owner, Patience::Forever);
        let backend = stage.locks(self.process).backend().clone();
        let answer =
            stage.world.clock.timeout(d, backend.acquire(Arc::new(ask.clone()), None)).await;
        self.seam(name, &ask, answer, &backend, Some((d, polls))).await;
    }

    /// What came of a request at the seam; it is undone in any case.
    async fn seam(
        &self,
        name: usize,
        ask: &Ask,
        answer: Option<Result<Attempt, distlock_core::Error>>,
        backend: &std::sync::Arc<dyn distlock_core::backend::Backend>,
        hold: Option<(Duration, u32)>,
    ) {
        let stage = &self.stage;
        let mut view = None;
        if let Some(Ok(Attempt::Granted(grant))) = &answer
            && grant.deadline() > self.now()
        {
            let token = grant.tokens.first();
            self.note(|| format!("granted with token {token}, at the seam"));
            let until = Err(grant.deadline());
            let process = self.process;
            let owner = match stage.program.family {
                Family::Lease => ask.owner.to_string(),
                _ => format!("{} of {process}", ask.owner),
            };
            let mut laws = stage.laws.borrow_mut();
            view = Some(laws.granted(Granted {
                name,
                owner,
                process,
                token,
                mode: ask.mode,
                renewed: false,
                ttl: ask.ttl,
                min_hold: Duration::ZERO,
                held: until,
            }));
        }
        if let Some(view) = view {
            if let Some((d, _)) = hold {
                stage.world.clock.sleep(d).await;
            }
            stage.laws.borrow_mut().gives(view);
        }
        let key = ask.key();
        if let Some((_, polls)) = hold {
            self.until(Cancel::Polls(polls), backend.abandon(&key)).await;
        }
        for _ in 0..100 {
            match backend.abandon(&key).await {
                Ok(()) => return,
                Err(_) => stage.world.clock.sleep(Duration::from_millis(200)).await,
            }
        }
    }
}
