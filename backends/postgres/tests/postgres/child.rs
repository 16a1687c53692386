//! The other process: what it does is said in its environment.

use distlock_core::Clock;
use distlock_testkit::fellow::{self, hear, say};
use distlock_testkit::takeover;

use crate::kit::{connect, ms};

/// How often a process of the role `count` has its turn.
const TURNS: usize = 30;

/// Plays the role of a child, if this is one.
pub(crate) fn role() -> bool {
    let Some((role, url)) = fellow::part() else { return false };
    let url = url.into_string().expect("a URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match role.as_str() {
        "grab" => runtime.block_on(grab(&url)),
        "count" => {
            fellow::end_when_told();
            runtime.block_on(count(&url));
        }
        takeover::ROLE => {
            runtime.block_on(async { takeover::keep(&connect(&url).await.unwrap()).await });
        }
        other => panic!("no role is called {other}"),
    }
    true
}

/// Says that a lock is busy, waits for it, says its token, and gives it back when told.
async fn grab(url: &str) {
    let locks = connect(url).await.unwrap();
    let lock = locks.lock("a").ttl(ms(60_000));
    say(match lock.clone().try_acquire().await.unwrap() {
        Ok(_) => "free",
        Err(_) => "busy",
    });
    let guard = lock.acquire().await.unwrap();
    say(guard.token());
    hear();
    let _ = guard.release().await.unwrap();
    say("released");
}

/// Has its turns at one lock, whatever the server does meanwhile, and says each token.
async fn count(url: &str) {
    let locks = connect(url).await.unwrap();
    let mut turns = 0;
    while turns < TURNS {
        match locks.lock("turns").ttl(ms(4000)).acquire().await {
            Ok(guard) => {
                say(guard.token());
                turns += 1;
                let _ = guard.release().await;
            }
            Err(e) => {
                assert!(e.is_transient(), "{e:?}");
                Clock::system().sleep(ms(50)).await;
            }
        }
    }
    say("done");
}
