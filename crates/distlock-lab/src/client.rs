//! A client process, as the lab sees it.

use std::time::Duration;

use distlock_testkit::{Child, ProxiedRoute};

/// A client. Dropping it kills its process.
pub(crate) struct Client {
    pub(crate) name: String,
    pub(crate) child: Child,
    pub(crate) road: Option<ProxiedRoute>,
    pub(crate) pid: u32,
    pub(crate) alive: bool,
    /// What it said that nobody has asked for yet.
    inbox: Vec<String>,
    next: u32,
}

/// An answer that is still to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending(u32);

/// Long enough for any machine; only a broken story waits it out.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);

impl Client {
    /// Names a process that was started in the lab's role; [`Client::ready`] waits for it.
    pub(crate) fn new(name: String, child: Child, road: Option<ProxiedRoute>) -> Self {
        let pid = child.pid();
        Self { name, child, road, pid, alive: true, inbox: Vec::new(), next: 0 }
    }

    pub(crate) async fn ready(&mut self) {
        self.child.hear_for(PATIENCE, "ready").await;
    }

    /// Tells it to do something, without waiting for the answer.
    pub(crate) async fn begin(&mut self, command: &str) -> Pending {
        self.next += 1;
        self.child.say(&format!("{} {command}", self.next)).await;
        Pending(self.next)
    }

    /// What it says next about something it was told to do.
    pub(crate) async fn answer(&mut self, to: Pending) -> String {
        let prefix = format!("{} ", to.0);
        loop {
            if let Some(i) = self.inbox.iter().position(|line| line.starts_with(&prefix)) {
                return self.inbox.remove(i)[prefix.len()..].to_owned();
            }
            let line = self.child.hear_for(PATIENCE, "").await;
            self.inbox.push(line);
        }
    }

    /// Tells it to do something and waits until it is done.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        let pending = self.begin(command).await;
        self.answer(pending).await
    }
}
