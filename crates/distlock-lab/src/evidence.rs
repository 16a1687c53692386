//! What a run left behind, put together: histories of clients, logs of resources, faults.

use std::collections::{BTreeMap, HashMap};
use std::io;

use distlock_testkit::history::{self, Event, What};
use distlock_testkit::{Resource, Write};

use crate::checkers::Window;
use crate::scene::Scene;
use distlock_lab::record::{self, End};

/// All of it, on one clock.
pub(crate) struct Evidence {
    /// When the run began and ended, on the boot clock.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) events: Vec<Event>,
    /// By lock, what happened to what it protects, in the resource's own order.
    pub(crate) logs: Vec<Log>,
    pub(crate) locks: Vec<String>,
    /// Which client a process was.
    pids: HashMap<String, usize>,
}

/// The log of one resource.
pub(crate) struct Log {
    pub(crate) lock: usize,
    pub(crate) kind: String,
    pub(crate) writes: Vec<Write>,
}

impl Evidence {
    pub(crate) fn of(scene: &Scene, end: u64) -> io::Result<Self> {
        let mut events = history::read(&scene.histories())?;
        events.sort_by_key(|e| e.at);
        let mut logs = Vec::new();
        let mut files: Vec<_> = std::fs::read_dir(scene.resources())?.collect::<Result<_, _>>()?;
        files.sort_by_key(std::fs::DirEntry::file_name);
        for file in files {
            let name = file.file_name().to_string_lossy().into_owned();
            let Some((lock, kind)) = name.rsplit_once('.') else { continue };
            let Some(lock) = scene.locks.iter().position(|l| l == lock) else { continue };
            let writes = Resource::at(file.path()).log()?;
            logs.push(Log { lock, kind: kind.to_owned(), writes });
        }
        let pids = scene.pids.iter().map(|(pid, client)| (pid.to_string(), *client)).collect();
        let (locks, start) = (scene.locks.clone(), scene.start.as_nanos());
        Ok(Self { start, end, events, logs, locks, pids })
    }

    /// Takes entries apart from the hold they were meant for, where the store may have ended that one
    /// unknown to its holder: with a higher token they are holds of their own beside it.
    pub(crate) fn apart(&mut self, windows: &[Window]) {
        let mut tokens: HashMap<String, u64> = HashMap::new();
        for e in &mut self.events {
            let permitted = || windows.iter().any(|w| w.permits(e.at));
            match &e.what {
                What::Granted { token, .. } => {
                    tokens.insert(e.who.clone(), *token);
                }
                What::Entered { token, until, outer }
                    if tokens.get(outer).is_some_and(|held| held < token) && permitted() =>
                {
                    e.what = What::Granted { token: *token, until: *until };
                }
                _ => {}
            }
        }
    }

    /// A moment as the record has it.
    pub(crate) fn since(&self, at: u64) -> u64 {
        at.saturating_sub(self.start)
    }

    pub(crate) fn client(&self, who: &str) -> Option<usize> {
        self.pids.get(who.split('-').next().unwrap_or_default()).copied()
    }

    pub(crate) fn lock(&self, name: &str) -> Option<usize> {
        self.locks.iter().position(|l| l == name)
    }

    pub(crate) fn grants(&self) -> u32 {
        let granted = |e: &&Event| matches!(e.what, What::Granted { .. } | What::Entered { .. });
        u32::try_from(self.events.iter().filter(granted).count()).unwrap_or(u32::MAX)
    }

    /// Holds and waits, as the report draws them.
    pub(crate) fn lanes(&self) -> (Vec<record::Hold>, Vec<record::Wait>) {
        let mut requests: BTreeMap<&str, Request> = BTreeMap::new();
        let mut killed: HashMap<&str, u64> = HashMap::new();
        for e in &self.events {
            if e.what == What::Killed {
                killed.insert(e.who.trim_end_matches('-'), e.at);
                continue;
            }
            let (Some(client), Some(lock)) = (self.client(&e.who), self.lock(&e.lock)) else {
                continue;
            };
            let r = requests.entry(&e.who).or_insert_with(|| Request::new(client, lock, e.at));
            r.happens(e);
        }
        let (mut holds, mut waits) = (Vec::new(), Vec::new());
        for (who, r) in requests {
            let process = who.split('-').next().unwrap_or_default();
            let killed = killed.get(process).copied();
            let over = r.granted.map(|(at, _)| at).or(r.gave_up).or(killed).unwrap_or(self.end);
            waits.push(record::Wait {
                client: r.client,
                lock: r.lock,
                from: self.since(r.asked),
                until: self.since(over.max(r.asked)),
            });
            let Some((from, token)) = r.granted else { continue };
            let (until, end) = r.ends(killed, self.end);
            holds.push(record::Hold {
                client: r.client,
                lock: r.lock,
                token,
                from: self.since(from),
                until: self.since(until.max(from)),
                end,
            });
        }
        holds.sort_by_key(|h| h.from);
        waits.sort_by_key(|w| w.from);
        (holds, waits)
    }

    /// What was written, as the report draws it.
    pub(crate) fn writes(&self) -> Vec<record::Write> {
        let mut all: Vec<record::Write> = self
            .logs
            .iter()
            .flat_map(|log| log.writes.iter().map(move |w| (log.lock, w)))
            .filter(|(_, w)| !w.read || !w.accepted)
            .filter_map(|(lock, w)| {
                Some(record::Write {
                    at: self.since(w.at),
                    client: self.client(&w.by)?,
                    lock,
                    token: w.token,
                    accepted: w.accepted,
                    fenced: w.fenced,
                })
            })
            .collect();
        all.sort_by_key(|w| w.at);
        all
    }
}

/// One request, as a bar of the picture.
struct Request {
    client: usize,
    lock: usize,
    asked: u64,
    granted: Option<(u64, u64)>,
    until: u64,
    released: Option<u64>,
    lost: Option<u64>,
    gave_up: Option<u64>,
}

impl Request {
    fn new(client: usize, lock: usize, asked: u64) -> Self {
        let (granted, released, lost, gave_up) = (None, None, None, None);
        Self { client, lock, asked, granted, until: 0, released, lost, gave_up }
    }

    fn happens(&mut self, e: &Event) {
        match &e.what {
            What::Granted { token, until } | What::Entered { token, until, .. } => {
                self.granted = Some((e.at, *token));
                self.until = *until;
            }
            What::Valid { until } => self.until = self.until.max(*until),
            What::ReleaseSent => self.released = Some(e.at),
            What::Lost => self.lost = self.lost.or(Some(e.at)),
            What::GaveUp => self.gave_up = Some(e.at),
            What::Asked | What::Enqueued | What::Released | What::Killed | What::End => {}
        }
    }

    /// Until when it was believed in, and what ended that.
    fn ends(&self, killed: Option<u64>, end: u64) -> (u64, End) {
        let ends = [
            (self.released, End::Released),
            (killed, End::Killed),
            // Its deadline counts, not the moment when its holder looked.
            (self.lost.map(|at| at.min(self.until)), End::Lost),
            (Some(self.until), End::Expired),
            (Some(end), End::Open),
        ];
        let first = ends.into_iter().filter_map(|(at, how)| at.map(|at| (at, how)));
        first.min_by_key(|(at, _)| *at).unwrap_or((end, End::Open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: u64, who: &str, what: What) -> Event {
        Event { at, who: who.into(), lock: "l".into(), what }
    }

    fn owner_enters(token: u64, window: (u64, u64)) -> What {
        let entered = What::Entered { token, until: 90, outer: "1-1".into() };
        let events = vec![
            event(10, "1-1", What::Granted { token: 7, until: 80 }),
            event(20, "1-2", entered),
        ];
        let (logs, locks, pids) = (vec![], vec!["l".to_owned()], HashMap::new());
        let mut evidence = Evidence { start: 0, end: 100, events, logs, locks, pids };
        evidence.apart(&[Window { from: window.0, until: window.1, two_holders: Some(window) }]);
        evidence.events[1].what.clone()
    }

    #[test]
    fn only_where_two_may_hold_an_entry_is_a_hold_of_its_own() {
        let alone = What::Granted { token: 8, until: 90 };
        assert_eq!(owner_enters(8, (15, 30)), alone);
        for (token, window) in [(8, (30, 40)), (8, (0, 15)), (7, (15, 30)), (6, (15, 30))] {
            let What::Entered { .. } = owner_enters(token, window) else {
                panic!("token {token}, {window:?}")
            };
        }
    }
}
