//! What this program does when it is the second process of a law.

mod churn;
mod count;
mod crowd;
mod hold;
mod storm;

use std::collections::HashMap;
use std::fmt::Display;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use distlock_core::backend::Fut;
use distlock_core::{Locks, engine};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::site::StoreUnderTest;
use crate::suite::{Connect, Suite};

pub(crate) use churn::CHURNED;

/// Names the role; its arguments are `key=value` on the command line.
pub(crate) const ROLE: &str = "DISTLOCK_TESTKIT_ROLE";

/// The role this process was started in, if it was.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Where a child has its clients from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// A suite's store.
    Suite(Suite),
    /// Whatever a URL leads to.
    Url(Connect),
}

/// A role of a test program's own: see [`as_child_of`](crate::as_child_of).
pub type Role = fn(Stage) -> Fut<'static, ()>;

/// A child's arguments and its line to the parent.
pub struct Stage {
    source: Source,
    args: HashMap<String, String>,
    lines: UnboundedReceiver<String>,
}

impl Stage {
    fn new(source: Source) -> Self {
        let args = std::env::args().skip(1);
        let args = args.filter_map(|a| a.split_once('=').map(|(k, v)| (k.into(), v.into())));
        let (tx, lines) = unbounded_channel();
        engine::thread("parent", move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                let _ = tx.send(line);
            }
            // The parent is gone, or wants this process gone: end as a crash would.
            std::process::exit(3);
        })
        .expect("a thread that listens to the parent");
        Self { source, args: args.collect(), lines }
    }

    /// An argument, if it was given.
    #[must_use]
    pub fn arg(&self, key: &str) -> Option<&str> {
        self.args.get(key).map(String::as_str)
    }

    /// An argument that must be there.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn need(&self, key: &str) -> &str {
        self.arg(key).unwrap_or_else(|| panic!("a child needs {key}="))
    }

    /// A number that must be there.
    ///
    /// # Panics
    /// When it is not, or is none.
    #[must_use]
    pub fn number(&self, key: &str) -> usize {
        self.need(key).parse().expect("a number")
    }

    /// An argument in milliseconds, if it was given.
    ///
    /// # Panics
    /// When it is no number.
    #[must_use]
    pub fn millis(&self, key: &str) -> Option<Duration> {
        self.arg(key).map(|v| Duration::from_millis(v.parse().expect("milliseconds")))
    }

    /// Tells the parent a line.
    pub fn say(&self, line: impl AsRef<str>) {
        say(line.as_ref());
    }

    /// What the parent says next.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn hear(&mut self) -> String {
        match self.lines.recv().await {
            Some(line) => line,
            None => std::future::pending().await, // the listening thread is ending the process
        }
    }

    /// What the parent has said meanwhile, if anything.
    pub fn heard(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// A client of the store the parent named; of one of its own, where no URL was given.
    ///
    /// # Panics
    /// When there is none to be had.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it had opened.
    pub async fn client(&self) -> Locks {
        let suite = match self.source {
            Source::Url(connect) => return connect(self.need("url")).await.expect("a client"),
            Source::Suite(suite) => suite,
        };
        match (self.arg("url"), suite.by_url) {
            (Some(url), Some((_, connect))) => connect(url).await.expect("a client"),
            _ => StoreUnderTest::fresh(suite).await.expect("a store").client().await,
        }
    }
}

/// Tells the parent of this process a line.
pub fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Plays a role to its end: one of those here, or one of the program's own.
pub(crate) fn play(role: &str, source: Source, own: &[(&str, Role)]) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let stage = Stage::new(source);
    let own = own.iter().find(|(name, _)| *name == role).map(|(_, play)| *play);
    runtime.block_on(async move {
        if let Some(play) = own {
            return play(stage).await;
        }
        match role {
            "hold" => hold::hold(stage).await,
            "open" => hold::open(stage).await,
            "resume" => hold::resume(stage).await,
            "churn" => churn::churn(stage).await,
            "count" => count::count(stage).await,
            "storm" => storm::storm(stage).await,
            "crowd" => crowd::crowd(stage).await,
            "one-shot" => crowd::one_shot(stage).await,
            other => panic!("no role is called {other:?}"),
        }
    });
    ExitCode::SUCCESS
}
