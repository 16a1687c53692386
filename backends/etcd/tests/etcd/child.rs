//! The other process: it takes and gives back one lock until told to stop.

use std::path::Path;
use std::sync::atomic::Ordering;

use distlock_core::{Clock, Locks};
use distlock_testkit::fellow::{self, say};
use distlock_testkit::history::Recorder;

use crate::kit::{connect, ms};

/// Where it writes down what happens to it.
pub(crate) const HISTORY: &str = "DISTLOCK_ETCD_TEST_HISTORY";

/// Plays the role of a child, if this is one.
pub(crate) fn role() -> bool {
    let Some((_, url)) = fellow::part() else { return false };
    let history = std::env::var_os(HISTORY).expect("a history");
    let (stop, url) = (fellow::told(), url.into_string().expect("a URL"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = connect(&url).await.unwrap();
        contend(&locks, Path::new(&history), || stop.load(Ordering::Acquire)).await;
        locks.close().await;
    });
    true
}

/// Takes and gives back one lock, and writes down what happens; a line for each grant.
pub(crate) async fn contend(locks: &Locks, history: &Path, stop: impl Fn() -> bool) {
    let mut recorder = Recorder::create(history).unwrap();
    while !stop() {
        let lock = locks.lock("storm").ttl(ms(4000));
        match recorder.acquire_lock(lock, "storm").await {
            Ok(guard) => {
                Clock::system().sleep(ms(5)).await;
                // Lost, unanswered or released: the history says which.
                let _ = recorder.release(guard).await;
                say("grant");
            }
            Err(e) => assert!(e.is_transient(), "{e:?}"),
        }
    }
    recorder.end().unwrap();
}
