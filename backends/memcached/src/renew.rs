//! Renewal: the item is written again with a new exptime, by compare-and-swap. One packet for all
//! that this client has notes of; what changed meanwhile is read and judged anew.

use std::time::Duration;

use distlock_core::state::Reply as Answer;
use distlock_core::{BootInstant, Due, Error, LossReason, Replies};

use crate::errors::{self, RACES, odd};
use crate::key;
use crate::record::{Phase, Record};
use crate::store::Inner;
use crate::time::{renewal, until};
use crate::wire::{Command, If, Reply, Version};

/// Max commands in one packet: the server answers each before it reads much further.
const AT_ONCE: usize = 256;

/// One hold on its way to being renewed.
enum Step {
    /// To be read.
    Read,
    /// To be written as it was last seen.
    Write { record: Record, version: Version, secs: u32, since: BootInstant },
    /// Answered.
    Over(Result<Answer, Error>),
}

impl Inner {
    pub(crate) async fn renew(&self, due: &[Due]) -> Replies {
        let mut done = Vec::with_capacity(due.len());
        for some in due.chunks(AT_ONCE) {
            done.extend(self.renew_some(some).await);
        }
        done
    }

    async fn renew_some(&self, due: &[Due]) -> Replies {
        let mut steps: Vec<Step> = due.iter().map(|d| self.noted(d)).collect();
        for _ in 0..RACES {
            let sent = self.clock.now();
            let open: Vec<usize> =
                (0..due.len()).filter(|i| !matches!(steps[*i], Step::Over(_))).collect();
            if open.is_empty() {
                break;
            }
            let commands = open.iter().map(|i| self.command(&due[*i], &steps[*i])).collect();
            let replies = match self.link.call(commands).await {
                Ok(replies) => replies,
                Err(e) => {
                    open.iter().for_each(|i| steps[*i] = Step::Over(Err(e.clone())));
                    break;
                }
            };
            for (i, reply) in open.into_iter().zip(replies) {
                let step = std::mem::replace(&mut steps[i], Step::Read);
                steps[i] = self.after(&due[i], step, reply, sent);
            }
        }
        let over = |step| match step {
            Step::Over(reply) => reply,
            Step::Read | Step::Write { .. } => Err(errors::contended()),
        };
        steps.into_iter().map(over).collect()
    }

    /// What the notes say about a hold.
    fn noted(&self, due: &Due) -> Step {
        let Some(note) = self.known.lock(&due.key.lock) else { return Step::Read };
        if !note.record.has(due.key.req) || note.record.phase != Phase::Held {
            return Step::Read;
        }
        // A hold is never cut short, least of all that of a request beside this one.
        let secs = renewal(due.ttl, note.record.ttl()).max(until(&self.clock, note.end));
        Step::Write { record: note.record, version: note.version, secs, since: note.since }
    }

    fn command(&self, due: &Due, step: &Step) -> Command {
        match step {
            Step::Write { record, version, secs, .. } => {
                self.write(record, *secs, If::Same(*version))
            }
            Step::Read | Step::Over(_) => Command::Get { key: key::lock(&due.key.lock) },
        }
    }

    fn after(&self, due: &Due, step: Step, reply: Reply, sent: BootInstant) -> Step {
        match (step, reply) {
            (Step::Write { record, secs, since, .. }, Reply::Done { version }) => {
                self.note(record, version, since, sent, secs);
                let left = Duration::from_secs(secs.into());
                Step::Over(Ok(Answer::Renewed { remaining: left, waiters: 0 }))
            }
            (Step::Write { .. }, Reply::Changed) => Step::Read,
            (_, Reply::Missing) => self.lost(due, LossReason::Gone),
            (Step::Read, Reply::Hit { value, version, left }) => {
                self.seen(due, &value, version, left)
            }
            (_, other) => Step::Over(Err(odd(&other))),
        }
    }

    fn seen(&self, due: &Due, value: &[u8], version: Version, left: u32) -> Step {
        let record = match Record::read(value, Some(&due.key.lock)) {
            Ok(record) => record,
            Err(e) => return Step::Over(Err(e)),
        };
        match record.phase {
            Phase::Held if record.has(due.key.req) => {
                let secs = renewal(due.ttl, record.ttl()).max(left);
                let age = record.age(self.clock.wall_micros());
                Step::Write { record, version, secs, since: self.clock.now().minus(age) }
            }
            Phase::Revoked if record.has(due.key.req) => self.lost(due, LossReason::Revoked),
            _ => self.lost(due, LossReason::Gone),
        }
    }

    fn lost(&self, due: &Due, why: LossReason) -> Step {
        self.known.forget(&due.key.lock, due.key.req);
        Step::Over(Ok(Answer::Lost(why)))
    }
}
