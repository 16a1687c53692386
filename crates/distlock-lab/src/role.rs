//! A client of the lab: this program again, in a process of its own. It does what it is told, line
//! by line, several things at once, and writes down what happens to it.
//!
//! A line is `ID VERB ARGUMENTS…`, an answer `ID ANSWER`.

pub(crate) mod work;

use std::collections::HashMap;
use std::path::PathBuf;
use std::str::SplitWhitespace;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::client::PATIENCE;
use distlock::backend::{Clock, Fut};
use distlock::{Busy, Error, Force, Guard, Held, Lock, Locks, Owner, Released};
use distlock_testkit::history::{Note, Recorder, What};
use distlock_testkit::{Resource, Stage, say, task};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The role's name.
pub(crate) const NAME: &str = "lab";

/// Plays it.
pub(crate) fn play(stage: Stage) -> Fut<'static, ()> {
    Box::pin(run(stage))
}

async fn run(mut stage: Stage) {
    let locks = connect(stage.need("url")).await;
    let recorder = Recorder::create(stage.need("history").as_ref()).expect("a history");
    let me = Arc::new(Me {
        locks,
        resources: PathBuf::from(stage.need("resources")),
        recorder: Mutex::new(recorder),
        slots: Mutex::default(),
        stop: watch::Sender::new(false),
        serves: watch::Sender::new(0),
    });
    stage.say("ready");
    loop {
        let line = stage.hear().await;
        let Some((id, command)) = line.split_once(' ') else { continue };
        let (id, command) = (id.to_owned(), command.to_owned());
        if command == "bye" {
            me.leave().await;
            say(format!("{id} done"));
            return;
        }
        let me = me.clone();
        task(async move {
            let answer = me.obey(&id, &command).await;
            say(format!("{id} {answer}"));
        });
    }
}

/// As a program does that is started again: servers may be changing places just now.
async fn connect(url: &str) -> Locks {
    let clock = Clock::system();
    let end = clock.now().plus(PATIENCE);
    loop {
        match distlock::connect(url).await {
            Ok(locks) => return locks,
            Err(e) if clock.now() >= end => panic!("a client of the lab: {e:?}"),
            Err(_) => clock.sleep(Duration::from_millis(50)).await,
        }
    }
}

/// This client.
struct Me {
    locks: Locks,
    resources: PathBuf,
    recorder: Mutex<Recorder>,
    slots: Mutex<HashMap<String, Slot>>,
    stop: watch::Sender<bool>,
    /// How often everybody was asked to be served once more.
    serves: watch::Sender<u32>,
}

/// What it has of one lock.
enum Slot {
    Asking(AbortHandle, Note),
    Held(Box<Mine>, Owner),
}

struct Mine {
    guard: Guard,
    note: Note,
    _looker: Looker,
}

/// Writes down again and again whether a hold is believed in, until it is dropped.
struct Looker(AbortHandle);

impl Drop for Looker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Looker {
    fn at(held: Held, note: Note) -> Self {
        let pace = (held.ttl() / 8).clamp(Duration::from_millis(20), Duration::from_millis(200));
        let looks = task(async move {
            loop {
                Clock::system().sleep(pace).await;
                if !note.look(&held) {
                    return;
                }
            }
        });
        Self(looks.abort_handle())
    }
}

impl Mine {
    fn new(guard: Guard, note: Note) -> Self {
        let looker = Looker::at(guard.held(), note.clone());
        Self { guard, note, _looker: looker }
    }

    /// Leaves it to the guard's drop, which gives it back in the background.
    fn drop_it(self) {
        if self.note.look(&self.guard) {
            self.note.put(What::ReleaseSent);
        }
    }

    async fn release(self) -> String {
        match self.note.release(self.guard).await {
            Ok(Released::Released) => "released".to_owned(),
            Ok(Released::WasLost) => "was-lost".to_owned(),
            Err(e) => format!("unknown {e}"),
        }
    }
}

/// How an acquire ended.
enum Took {
    Granted(Guard),
    Busy(Box<Busy>),
    Failed(Box<Error>),
}

impl Me {
    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives everything back in order.
    async fn leave(&self) {
        self.stop.send_replace(true);
        let slots = std::mem::take(&mut *self.slots());
        for slot in slots.into_values() {
            match slot {
                Slot::Asking(acquire, note) => {
                    acquire.abort();
                    note.put(What::GaveUp);
                }
                Slot::Held(mine, _) => drop(mine.release().await),
            }
        }
        self.locks.close().await;
        self.recorder().end().expect("a history");
    }

    async fn obey(self: &Arc<Self>, id: &str, command: &str) -> String {
        let mut words = command.split_whitespace();
        let verb = words.next().unwrap_or_default();
        match verb {
            "take" => self.take(words, None).await,
            "enter" => {
                let outer = words.next().unwrap_or_default().to_owned();
                self.take(words, Some(outer)).await
            }
            "cancel" => self.cancel(words.next().unwrap_or_default()),
            "look" => match self.view(words.next().unwrap_or_default()) {
                Some((held, note)) if note.look(&held) => "valid".to_owned(),
                Some((held, _)) => match held.check() {
                    Err(lost) => format!("lost {}", lost.why.word()),
                    Ok(()) => "valid".to_owned(),
                },
                None => "nothing".to_owned(),
            },
            "lost" => match self.view(words.next().unwrap_or_default()) {
                Some((held, note)) => {
                    let why = held.lost().await.why;
                    note.look(&held);
                    why.word().to_owned()
                }
                None => "nothing".to_owned(),
            },
            "update" => self.update(id, words).await,
            "release" => match self.let_go(words.next().unwrap_or_default()) {
                Some(mine) => mine.release().await,
                None => "nothing".to_owned(),
            },
            "drop" => match self.let_go(words.next().unwrap_or_default()) {
                Some(mine) => {
                    mine.drop_it();
                    "dropped".to_owned()
                }
                None => "nothing".to_owned(),
            },
            // As an operator does who has been called at night.
            "force" => {
                match self.locks.force(&words.collect::<String>(), None, Force::Revoke).await {
                    Ok(forced) => format!("{forced:?}"),
                    Err(e) => format!("failed {e}"),
                }
            }
            "work" => work::work(self, id, words).await,
            "storm" => work::storm(self, words).await,
            "crowd" => work::crowd(self, words).await,
            "race" => work::race(self, words).await,
            "serve" => {
                self.serves.send_modify(|n| *n += 1);
                "heard".to_owned()
            }
            "stop" => {
                self.stop.send_replace(true);
                "stopping".to_owned()
            }
            other => panic!("a client of the lab cannot {other:?}"),
        }
    }

    fn view(&self, slot: &str) -> Option<(Held, Note)> {
        match self.slots().get(slot) {
            Some(Slot::Held(mine, _)) => Some((mine.guard.held(), mine.note.clone())),
            _ => None,
        }
    }

    fn let_go(&self, slot: &str) -> Option<Mine> {
        let mut slots = self.slots();
        match slots.remove(slot)? {
            Slot::Held(mine, _) => Some(*mine),
            asking => {
                slots.insert(slot.to_owned(), asking);
                None
            }
        }
    }

    fn cancel(&self, slot: &str) -> String {
        match self.slots().remove(slot) {
            Some(Slot::Asking(acquire, note)) => {
                acquire.abort();
                note.put(What::GaveUp);
                "cancelled".to_owned()
            }
            _ => "nothing".to_owned(),
        }
    }

    /// `SLOT NAME TTL renew|once PATIENCE`, where patience is `-` for ever or milliseconds.
    async fn take(
        self: &Arc<Self>,
        mut words: SplitWhitespace<'_>,
        outer: Option<String>,
    ) -> String {
        let mut next = || words.next().unwrap_or_default().to_owned();
        let (slot, name, ttl, renew, patience) = (next(), next(), next(), next(), next());
        let ttl = Duration::from_millis(ttl.parse().expect("a TTL"));
        let mut lock = self.locks.lock(&name).ttl(ttl).label(std::process::id().to_string());
        if renew == "once" {
            lock = lock.without_renewal();
        }
        let inside = outer.and_then(|slot| match self.slots().get(&slot) {
            Some(Slot::Held(mine, owner)) => Some((mine.note.clone(), owner.clone())),
            _ => None,
        });
        let owner = inside.as_ref().map_or_else(Owner::new, |(_, owner)| owner.clone());
        lock = lock.owner(&owner);
        let (lock, note) = self.recorder().ask(lock, &name);
        let patience = patience.parse().ok().map(Duration::from_millis);
        let acquire = task(acquire(lock, patience));
        self.slots().insert(slot.clone(), Slot::Asking(acquire.abort_handle(), note.clone()));
        let Ok(took) = acquire.await else { return "cancelled".to_owned() };
        let asks = |s: &Slot| matches!(s, Slot::Asking(_, n) if n.who() == note.who());
        if !self.slots().get(&slot).is_some_and(asks) {
            return "cancelled".to_owned(); // as it was granted: its guard is dropped here
        }
        match took {
            Took::Granted(guard) => {
                match &inside {
                    Some((outer, _)) => note.entered(&guard, outer),
                    None => note.granted(&guard),
                }
                let token = guard.token();
                self.slots().insert(slot, Slot::Held(Box::new(Mine::new(guard, note)), owner));
                format!("granted {token}")
            }
            Took::Busy(busy) => {
                self.slots().remove(&slot);
                note.put(What::GaveUp);
                format!("busy {busy}")
            }
            Took::Failed(e) => {
                self.slots().remove(&slot);
                note.put(What::GaveUp);
                format!("failed {e}")
            }
        }
    }

    /// `SLOT RESOURCE fenced|plain WORK`: reads, looks whether its lock is valid, works for so many
    /// milliseconds, and writes one more.
    async fn update(&self, id: &str, mut words: SplitWhitespace<'_>) -> String {
        let mut next = || words.next().unwrap_or_default().to_owned();
        let (slot, resource, fenced, work) = (next(), next(), next() == "fenced", next());
        let Some((held, note)) = self.view(&slot) else { return "nothing".to_owned() };
        let resource = Resource::at(self.resources.join(resource));
        let read = if fenced {
            let read = resource.read_fenced(note.who(), held.token()).expect("a read");
            if !read.accepted {
                return "refused".to_owned();
            }
            read.value
        } else {
            resource.value().expect("a read")
        };
        if !note.look(&held) {
            return "lost".to_owned();
        }
        say(format!("{id} looked"));
        Clock::system().sleep(Duration::from_millis(work.parse().expect("a while"))).await;
        // Whatever it believes by now: nobody looks between every two machine instructions.
        let write = resource.put(note.who(), held.token(), fenced, read + 1).expect("a write");
        if write.accepted { format!("taken {}", write.value) } else { "refused".to_owned() }
    }
}

async fn acquire(lock: Lock, patience: Option<Duration>) -> Took {
    let answer = match patience {
        None => lock.acquire().await.map(Ok),
        Some(d) if d.is_zero() => lock.try_acquire().await,
        Some(d) => lock.try_acquire_for(d).await,
    };
    match answer {
        Ok(Ok(guard)) => Took::Granted(guard),
        Ok(Err(busy)) => Took::Busy(Box::new(busy)),
        Err(e) => Took::Failed(Box::new(e)),
    }
}
