//! What a client does by itself: random work, a storm of dropped acquires, a race.

use std::str::SplitWhitespace;
use std::sync::Arc;
use std::time::Duration;

use distlock::backend::Clock;
use distlock::capability::Reentry;
use distlock::{Guard, Owner};
use distlock_testkit::history::{Note, What};
use distlock_testkit::{Resource, say, task};

use super::{Me, Mine, Took, acquire};
use crate::dice::Dice;

/// What the resources are called that a lock protects: a register that only a token opens, a
/// counter and a stock likewise, and a register that nobody guards.
pub(crate) const RESOURCES: [&str; 4] = ["register", "counter", "stock", "unfenced"];

/// `ID SEED TTL NAMES`: uses locks at random until told to stop. Says `ID served` once it has been
/// served at every lock after it was asked to.
pub(super) async fn work(me: &Arc<Me>, id: &str, mut words: SplitWhitespace<'_>) -> String {
    let mut next = || words.next().unwrap_or_default().to_owned();
    let (seed, ttl, names) = (next(), next(), next());
    let names: Vec<&str> = names.split(',').collect();
    let ttl = Duration::from_millis(ttl.parse().expect("a TTL"));
    let mut worker = Worker { me, dice: Dice::new(seed.parse().expect("a seed")), ttl };
    let (stop, serves) = (me.stop.subscribe(), me.serves.subscribe());
    let mut served = 0;
    while !*stop.borrow() {
        let asked = *serves.borrow();
        if asked > served {
            for name in &names {
                while !*stop.borrow() && !worker.hold(name, None).await {}
            }
            served = asked;
            say(format!("{id} served"));
            // Where there is no line, who goes on asking may keep the others out for ever.
            let _ = me.stop.subscribe().wait_for(|stop| *stop).await;
        } else {
            let name = *worker.dice.one(&names);
            worker.once(name).await;
        }
    }
    "stopped".to_owned()
}

struct Worker<'a> {
    me: &'a Arc<Me>,
    dice: Dice,
    ttl: Duration,
}

impl Worker<'_> {
    async fn once(&mut self, name: &str) {
        let reenters = self.me.locks.capability().reentry != Reentry::None;
        match self.dice.below(100) {
            0..50 => {
                self.hold(name, None).await;
            }
            50..65 => {
                let patience = self.dice.millis(0, 40);
                self.hold(name, Some(patience)).await;
            }
            65..82 => self.dropped(name).await,
            82..94 if reenters => self.enter_again(name).await,
            _ => {
                self.hold(name, None).await;
            }
        }
        let pause = self.dice.millis(1, 12);
        Clock::system().sleep(pause).await;
    }

    /// Asks, and writes down how that went.
    async fn ask(
        &mut self,
        name: &str,
        owner: &Owner,
        patience: Option<Duration>,
    ) -> Option<(Guard, Note)> {
        let label = std::process::id().to_string();
        let lock = self.me.locks.lock(name).ttl(self.ttl).owner(owner).label(label);
        let (lock, note) = self.me.recorder().ask(lock, name);
        match acquire(lock, patience).await {
            Took::Granted(guard) => Some((guard, note)),
            Took::Busy(_) => {
                note.put(What::GaveUp);
                None
            }
            Took::Failed(_) => {
                note.put(What::GaveUp);
                // Servers are killed under it: not at once again.
                Clock::system().sleep(Duration::from_millis(30)).await;
                None
            }
        }
    }

    /// Takes a lock, uses what it protects, and gives it back; whether it was granted.
    async fn hold(&mut self, name: &str, patience: Option<Duration>) -> bool {
        let owner = Owner::new();
        let Some((guard, note)) = self.ask(name, &owner, patience).await else { return false };
        note.granted(&guard);
        let mine = Mine::new(guard, note);
        self.write(name, &mine).await;
        self.end(mine).await;
        true
    }

    async fn end(&mut self, mine: Mine) {
        if self.dice.percent(80) {
            mine.release().await;
        } else {
            mine.drop_it();
        }
    }

    /// Reads, works and writes, by one of the ways there are.
    async fn write(&mut self, name: &str, mine: &Mine) {
        let kind = *self.dice.one(&RESOURCES);
        let fenced = kind != "unfenced";
        let resource = Resource::at(self.me.resources.join(format!("{name}.{kind}")));
        let (who, token) = (mine.note.who(), mine.guard.token());
        let read = if fenced {
            match resource.read_fenced(who, token).expect("a read") {
                read if read.accepted => read.value,
                _ => return,
            }
        } else {
            resource.value().expect("a read")
        };
        // Now and then long enough to be renewed meanwhile.
        let long = self.dice.percent(3);
        let work = if long { self.ttl / 2 } else { self.dice.millis(0, 12) };
        if !mine.note.look(&mine.guard) {
            return;
        }
        Clock::system().sleep(work).await;
        let value = match kind {
            "stock" if read == 0 => return,
            "stock" => read - 1,
            _ => read + 1,
        };
        let _ = resource.put(who, token, fenced, value).expect("a write");
    }

    /// An acquire that is dropped at some moment.
    async fn dropped(&mut self, name: &str) {
        let lock = self.me.locks.lock(name).ttl(self.ttl);
        let (lock, note) = self.me.recorder().ask(lock, name);
        let moment = Duration::from_micros(self.dice.below(15_000));
        match Clock::system().timeout(moment, acquire(lock, None)).await {
            Some(Took::Granted(guard)) => {
                note.granted(&guard);
                let mine = Mine::new(guard, note);
                self.end(mine).await;
            }
            _ => note.put(What::GaveUp),
        }
    }

    /// The same owner enters twice, and leaves in either order.
    async fn enter_again(&mut self, name: &str) {
        let owner = Owner::new();
        let Some((guard, note)) = self.ask(name, &owner, None).await else { return };
        note.granted(&guard);
        let outer = Mine::new(guard, note);
        let inner = self.ask(name, &owner, Some(self.ttl / 2)).await;
        let inner = inner.map(|(guard, note)| {
            // With another token and the outer one lost meanwhile this is a hold of its own. With the
            // same token the store let it into the outer one, which may be over by now.
            let same = guard.token() == outer.guard.token();
            match outer.guard.check() {
                Err(_) if !same => note.granted(&guard),
                _ => note.entered(&guard, &outer.note),
            }
            Mine::new(guard, note)
        });
        let (first, second) = match (inner, self.dice.percent(50)) {
            (Some(inner), true) => (Some(inner), outer),
            (Some(inner), false) => (Some(outer), inner),
            (None, _) => (None, outer),
        };
        if let Some(first) = first {
            self.end(first).await;
        }
        self.end(second).await;
    }
}

/// `N SEED TTL NAME`: so many acquires, each dropped at some moment. Says how many were granted.
pub(super) async fn storm(me: &Arc<Me>, mut words: SplitWhitespace<'_>) -> String {
    let mut next = || words.next().unwrap_or_default().to_owned();
    let (n, seed, ttl, name) = (next(), next(), next(), next());
    let (n, seed): (u64, u64) = (n.parse().expect("a number"), seed.parse().expect("a seed"));
    let ttl = Duration::from_millis(ttl.parse().expect("a TTL"));
    const LANES: u64 = 8;
    let lanes = (0..LANES).map(|lane| {
        let (me, name) = (me.clone(), name.clone());
        task(async move {
            let mut dice = Dice::new(seed ^ (lane + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut granted = 0_u32;
            for _ in 0..n / LANES {
                let (lock, note) = me.recorder().ask(me.locks.lock(&name).ttl(ttl), &name);
                let micros = *dice.one(&[0, 20, 60, 150, 400, 1_000, 2_500, 6_000, 20_000, 60_000]);
                let moment = Duration::from_micros(dice.below(micros + 1));
                match Clock::system().timeout(moment, acquire(lock, None)).await {
                    Some(Took::Granted(guard)) => {
                        granted += 1;
                        note.granted(&guard);
                        let mine = Mine::new(guard, note);
                        match dice.percent(50) {
                            true => drop(mine.release().await),
                            false => mine.drop_it(),
                        }
                    }
                    _ => note.put(What::GaveUp),
                }
            }
            granted
        })
    });
    let lanes: Vec<_> = lanes.collect();
    let mut granted = 0;
    for lane in lanes {
        granted += lane.await.expect("a lane ends well");
    }
    format!("granted {granted}")
}

/// `NAME TTL WORK`: takes and gives back as fast as it can until told to stop. Says how often.
pub(super) async fn race(me: &Arc<Me>, mut words: SplitWhitespace<'_>) -> String {
    let mut next = || words.next().unwrap_or_default().to_owned();
    let (name, ttl, work) = (next(), next(), next());
    let ttl = Duration::from_millis(ttl.parse().expect("a TTL"));
    let work = Duration::from_millis(work.parse().expect("a while"));
    let stop = me.stop.subscribe();
    let (mut rounds, mut failed) = (0_u32, 0_u32);
    while !*stop.borrow() {
        let (lock, note) = me.recorder().ask(me.locks.lock(&name).ttl(ttl), &name);
        match acquire(lock, None).await {
            Took::Granted(guard) => {
                note.granted(&guard);
                Clock::system().sleep(work).await;
                Mine::new(guard, note).release().await;
                rounds += 1;
            }
            Took::Busy(_) | Took::Failed(_) => {
                note.put(What::GaveUp);
                failed += 1;
                Clock::system().sleep(Duration::from_millis(30)).await;
            }
        }
    }
    format!("rounds {rounds} {failed}")
}

/// `N TTL NAME`: so many wait at once, and each gives back what it gets. Says how many were served.
pub(super) async fn crowd(me: &Arc<Me>, mut words: SplitWhitespace<'_>) -> String {
    let mut next = || words.next().unwrap_or_default().to_owned();
    let (n, ttl, name) = (next(), next(), next());
    let ttl = Duration::from_millis(ttl.parse().expect("a TTL"));
    let waiter = |_| {
        let (lock, note) = me.recorder().ask(me.locks.lock(&name).ttl(ttl), &name);
        task(async move {
            match acquire(lock, None).await {
                Took::Granted(guard) => {
                    note.granted(&guard);
                    Mine::new(guard, note).release().await == "released"
                }
                _ => {
                    note.put(What::GaveUp);
                    false
                }
            }
        })
    };
    let waiters: Vec<_> = (0..n.parse::<u32>().expect("a number")).map(waiter).collect();
    let mut served = 0;
    for waiter in waiters {
        served += u32::from(waiter.await.unwrap_or(false));
    }
    format!("served {served}")
}
