//! A child that counts up a plain file, protected by nothing but the lock.

use std::path::Path;

use super::Stage;
use crate::history::Recorder;

pub(super) async fn count(mut stage: Stage) {
    let locks = stage.client().await;
    let (name, file) = (stage.need("name").to_owned(), stage.need("file").to_owned());
    let rounds = stage.number("rounds");
    let mut recorder = Recorder::create(Path::new(stage.need("history"))).expect("a history");
    stage.say("ready");
    stage.hear().await;
    for _ in 0..rounds {
        let guard = recorder.acquire(&locks, &name).await.expect("a grant");
        let n: u64 =
            std::fs::read_to_string(&file).expect("the counter").parse().expect("a number");
        std::fs::write(&file, (n + 1).to_string()).expect("the counter");
        let released = recorder.release(guard).await.expect("a release");
        assert_eq!(released, distlock_core::Released::Released, "lost while counting");
    }
    recorder.end().expect("a history");
    stage.say("done");
    locks.close().await;
}
