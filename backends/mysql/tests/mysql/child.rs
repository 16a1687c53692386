//! The other process: what it does is said in its environment.

use std::sync::atomic::Ordering;

use distlock_core::Clock;
use distlock_testkit::fellow::{self, say};
use distlock_testkit::takeover;

use crate::kit::{connect, ms};

/// Plays the role of a child, if this is one.
pub(crate) fn role() -> bool {
    let Some((role, url)) = fellow::part() else { return false };
    let url = url.into_string().expect("a URL");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if role == takeover::ROLE {
        runtime.block_on(async { takeover::keep(&connect(&url).await.unwrap()).await });
        return true;
    }
    let over = fellow::told();
    runtime.block_on(async {
        let locks = connect(&url).await.unwrap();
        if role == "wait" {
            let _ = locks.lock("a").ttl(ms(60_000)).acquire().await;
            return;
        }
        while !over.load(Ordering::Acquire) {
            // Errors are of no interest: the server is killed under it.
            let Ok(Ok(guard)) = locks.lock("hot").ttl(ms(4000)).try_acquire_for(ms(8000)).await
            else {
                Clock::system().sleep(ms(20)).await;
                continue;
            };
            // Both are on the machine's one wall clock: when it was held for certain.
            let from = Clock::system().wall_micros();
            Clock::system().sleep(ms(1)).await;
            let valid = guard.check().is_ok();
            let to = Clock::system().wall_micros();
            if valid {
                say(format!("{} {from} {to}", guard.token()));
            }
            let _ = guard.release().await;
        }
    });
    true
}
