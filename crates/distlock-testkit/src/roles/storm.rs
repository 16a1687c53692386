//! A child that takes and gives back one lock until told to stop, whatever is done to it.

use std::path::Path;
use std::time::Duration;

use distlock_core::Clock;
use distlock_core::capability::Order;

use super::Stage;
use crate::history::Recorder;

/// How long each hold lasts: long enough that whoever looks for the holder still finds it.
const WORK: Duration = Duration::from_millis(15);

/// Says `served` after a round that began after `serve?` was heard, and then steps back where there is
/// no line; ends at `stop`.
pub(super) async fn storm(mut stage: Stage) {
    let locks = stage.client().await;
    let (name, ttl) = (stage.need("name").to_owned(), stage.millis("ttl").expect("ttl="));
    let mut recorder = Recorder::create(Path::new(stage.need("history"))).expect("a history");
    stage.say("ready");
    let mut asked = None;
    loop {
        asked = asked.or_else(|| stage.heard());
        if asked.as_deref() == Some("stop") {
            break;
        }
        let lock = locks.lock(&name).ttl(ttl).label(std::process::id().to_string());
        let guard = match recorder.acquire_lock(lock, &name).await {
            Ok(guard) => guard,
            // Somebody was stopped in the middle of a move, and the store waits for it.
            Err(e) if e.is_transient() => continue,
            Err(e) => panic!("no grant: {e:?}"),
        };
        Clock::system().sleep(WORK).await;
        // Lost or not: both happen to whoever is stopped, and the history says which.
        match recorder.release(guard).await {
            Ok(_) => {}
            // A session that was silent for too long may be cut in the middle of its release.
            Err(e) if e.is_transient() => {}
            Err(e) => panic!("no release: {e:?}"),
        }
        if asked.take().is_some() {
            stage.say("served");
            // Where there is no line, who goes on asking may keep the others out for ever.
            if locks.capability().order == Order::None {
                asked = Some(stage.hear().await);
            }
        }
    }
    recorder.end().expect("a history");
    stage.say("done");
    locks.close().await;
}
