//! Naming a store to the suite: one line, one trial per law that applies to it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use distlock_core::backend::Fut;
use distlock_core::capability::Capability;
use distlock_core::{Clock, Error, FullName, Locks, memory};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::law::{Law, Traits};
use crate::road::ProxiedRoute;
use crate::roles::{Role, Source};
use crate::site::{Made, StoreUnderTest};
use crate::{laws, roles};

/// How a client, here or in another process, comes to a store by its URL.
pub type Connect = fn(&str) -> Fut<'static, Result<Locks, Error>>;
/// Something done to a store from outside.
pub type Hook = for<'a> fn(&'a StoreUnderTest) -> Fut<'a, ()>;
/// Deletes the record of one lock, as an operator would.
pub type Lose = for<'a> fn(&'a StoreUnderTest, &'a FullName) -> Fut<'a, ()>;
/// What the locks of a site left at its servers: each key, and whether it ends by itself.
pub type Leftovers = for<'a> fn(&'a StoreUnderTest) -> Fut<'a, Vec<(String, bool)>>;
/// Makes a way to a site's store that leads through proxies.
pub type MakeRoad = for<'a> fn(&'a StoreUnderTest) -> Fut<'a, Result<ProxiedRoute, Error>>;
/// Makes a fresh store in a directory of its own.
type Make = fn(&Path) -> Fut<'static, Result<Made, Error>>;

/// No law takes longer, whatever the machine.
const LIMIT: Duration = Duration::from_secs(900);
/// Laws mostly wait: many more of them run at once than there are cores.
const AT_ONCE: usize = 8;

/// A store, as the suite needs to know it.
#[derive(Clone, Copy)]
pub struct Suite {
    pub(crate) capability: &'static Capability,
    pub(crate) by_url: Option<(Make, Connect)>,
    /// Other processes reach it by its URL.
    pub(crate) processes: bool,
    pub(crate) lose: Option<Lose>,
    pub(crate) wipe: Option<Hook>,
    pub(crate) restart: Option<Hook>,
    pub(crate) cut: Option<Hook>,
    pub(crate) road: Option<MakeRoad>,
    pub(crate) reads_first: bool,
    pub(crate) leaves: Option<(Leftovers, &'static [&'static str])>,
    pub(crate) at_once: usize,
}

impl Suite {
    /// The memory store: in this process only, so laws of several processes are not listed for it.
    #[must_use]
    pub fn memory() -> Self {
        Self {
            capability: memory::capability(),
            by_url: None,
            processes: false,
            lose: Some(|site, lock| Box::pin(async move { site.memory().wipe(lock) })),
            wipe: None,
            restart: None,
            cut: None,
            road: None,
            reads_first: false,
            leaves: None,
            at_once: AT_ONCE,
        }
    }

    /// A store that other processes reach by a URL. `make` starts a fresh one in a directory of
    /// its own.
    #[must_use]
    pub fn by_url(capability: Capability, make: Make, connect: Connect) -> Self {
        // One suite a program: what is leaked here lives as long as the program does anyway.
        let (capability, by_url) = (&*Box::leak(Box::new(capability)), Some((make, connect)));
        let processes = true;
        let (lose, wipe, restart, cut) = (None, None, None, None);
        let (road, leaves, at_once) = (None, None, AT_ONCE);
        let reads_first = false;
        Self {
            capability,
            by_url,
            processes,
            lose,
            wipe,
            restart,
            cut,
            road,
            reads_first,
            leaves,
            at_once,
        }
    }

    /// A store that only this process reaches by its URL: laws of several processes are not listed.
    #[must_use]
    pub fn in_process(capability: Capability, make: Make, connect: Connect) -> Self {
        Self { processes: false, ..Self::by_url(capability, make, connect) }
    }

    /// A store that is files in a directory: `connect` gets the path of one that does not exist
    /// yet.
    #[must_use]
    pub fn files(capability: Capability, connect: Connect) -> Self {
        let make: Make = |dir| {
            let path = dir.join("store").display().to_string();
            Box::pin(async move { Ok(Made::at(path)) })
        };
        Self::by_url(capability, make, connect)
    }

    /// Sets how many laws run at once: fewer for a store whose every move is several, and whose
    /// answers count only if they come soon.
    #[must_use]
    pub fn at_once(mut self, laws: usize) -> Self {
        self.at_once = laws;
        self
    }

    /// Adds how an operator deletes a lock's record.
    #[must_use]
    pub fn lose(mut self, hook: Lose) -> Self {
        self.lose = Some(hook);
        self
    }

    /// Adds how the store loses all its data.
    #[must_use]
    pub fn wipe(mut self, hook: Hook) -> Self {
        self.wipe = Some(hook);
        self
    }

    /// Adds how the store is restarted.
    #[must_use]
    pub fn restart(mut self, hook: Hook) -> Self {
        self.restart = Some(hook);
        self
    }

    /// Adds how every connection of the store is cut.
    #[must_use]
    pub fn cut(mut self, hook: Hook) -> Self {
        self.cut = Some(hook);
        self
    }

    /// Adds how the store is reached through proxies: the laws of lost and late answers are then
    /// listed.
    #[must_use]
    pub fn road(mut self, make: MakeRoad) -> Self {
        self.road = Some(make);
        self
    }

    /// Says that each move is a question and then a write, so that one whose first answer is lost
    /// does nothing: laws about moves that took effect unheard are not listed.
    #[must_use]
    pub fn reads_first(mut self) -> Self {
        self.reads_first = true;
        self
    }

    /// Adds how to see what its locks leave at its servers. Every one of `kinds` is part of some
    /// key that a client leaves, so that the look is known to see all of them.
    #[must_use]
    pub fn leaves(mut self, hook: Leftovers, kinds: &'static [&'static str]) -> Self {
        self.leaves = Some((hook, kinds));
        self
    }

    fn traits(&self) -> Traits {
        Traits {
            capability: self.capability,
            processes: self.processes,
            memory: self.by_url.is_none(),
            lose: self.lose.is_some(),
            wipe: self.wipe.is_some(),
            restart: self.restart.is_some(),
            cut: self.cut.is_some(),
            road: self.road.is_some(),
            reads_first: self.reads_first,
            leaves: self.leaves.is_some(),
        }
    }

    /// The laws that apply to this store. One that does not apply is not listed, never run and
    /// called passed.
    #[must_use]
    pub fn laws(&self) -> Vec<Law> {
        let traits = self.traits();
        laws::all().into_iter().filter(|law| law.applies(&traits)).collect()
    }
}

/// The `main` of a store's test program: either a child role, or one trial per law.
#[must_use]
pub fn run(suite: Suite) -> ExitCode {
    if let Some(role) = roles::role() {
        return roles::play(&role, Source::Suite(suite), &[]);
    }
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(suite.at_once);
    let store = suite.capability.store.replace(' ', "_");
    let trial =
        |law: Law| Trial::test(format!("{store}::{}", law.name), move || hold_to(law, suite));
    let trials = suite.laws().into_iter().map(trial).collect();
    libtest_mimic::run(&args, trials).exit_code()
}

/// For test programs that are no suite of laws: the role of a [`Child`](crate::Child), if this
/// process was started as one. To be asked first in `main`.
#[must_use]
pub fn as_child(connect: Connect) -> Option<ExitCode> {
    as_child_of(connect, &[])
}

/// Like [`as_child`], for a program with roles of its own, by their names.
#[must_use]
pub fn as_child_of(connect: Connect, own: &[(&str, Role)]) -> Option<ExitCode> {
    roles::role().map(|role| roles::play(&role, Source::Url(connect), own))
}

/// Laws that measure or load the machine run alone, the rest together.
static ALONE: RwLock<()> = RwLock::new(());

fn hold_to(law: Law, suite: Suite) -> Result<(), Failed> {
    let (_alone, _together) = if law.alone {
        (Some(ALONE.write().unwrap_or_else(PoisonError::into_inner)), None)
    } else {
        (None, Some(ALONE.read().unwrap_or_else(PoisonError::into_inner)))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| format!("no runtime: {e}"))?;
    let done = runtime.block_on(async {
        let site = StoreUnderTest::fresh(suite).await?;
        Clock::system()
            .timeout(LIMIT, (law.run)(&site))
            .await
            .ok_or_else(|| Failed::from(format!("not done within {LIMIT:?}")))
    });
    runtime.shutdown_background();
    done
}

/// Defines the `main` of a store's test program. Takes a [`Suite`].
#[macro_export]
macro_rules! suite {
    ($suite:expr) => {
        fn main() -> std::process::ExitCode {
            $crate::run($suite)
        }
    };
}
