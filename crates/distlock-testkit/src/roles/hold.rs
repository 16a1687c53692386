//! Children that hold, wait, open and take up.

use distlock_core::{Guard, Owner, Released, Ticket};

use super::{Stage, say};
use crate::Resource;

/// Acquires `name`, says where it stands meanwhile, then does as it is told.
pub(super) async fn hold(mut stage: Stage) {
    let locks = stage.client().await;
    let mut lock = locks.lock(stage.need("name")).label(stage.arg("label").unwrap_or("child"));
    if let Some(ttl) = stage.millis("ttl") {
        lock = lock.ttl(ttl);
    }
    if let Some(delay) = stage.millis("lock-delay") {
        lock = lock.lock_delay(delay);
    }
    if let Some(owner) = stage.arg("owner") {
        lock = lock.owner(&Owner::named(owner).expect("an owner"));
    }
    let lock = lock.on_wait(|status| say(format!("waiting {}", status.ahead.unwrap_or(0))));
    let mut guard = Some(lock.await.expect("a grant"));
    if let Some(guard) = &guard {
        stage.say(format!("granted {}", guard.token()));
    }
    loop {
        match stage.hear().await.as_str() {
            "check" => {
                let answer = guard.as_ref().map(|g| g.check());
                stage.say(match answer {
                    Some(Ok(())) => "check ok".to_owned(),
                    Some(Err(lost)) => format!("check lost {}", lost.why.word()),
                    None => "check none".to_owned(),
                });
            }
            // Whatever it believes about its lock: it may have looked before it was paused.
            "write" => {
                let token = guard.as_ref().expect("a guard").token();
                let taken = Resource::at(stage.need("resource")).write(token).expect("a write");
                stage.say(if taken { "write taken" } else { "write refused" });
            }
            "release" => stage.say(format!("release {}", give_back(guard.take()).await)),
            "detach" => {
                let ticket = guard.take().expect("a guard").detach().expect("a ticket");
                stage.say(format!("detach {ticket}"));
            }
            "bye" => return,
            other => panic!("a holder cannot {other:?}"),
        }
    }
}

async fn give_back(guard: Option<Guard>) -> &'static str {
    match guard.expect("a guard").release().await.expect("an answer") {
        Released::Released => "released",
        Released::WasLost => "was-lost",
    }
}

/// Opens the store at the word of the parent and uses it once.
pub(super) async fn open(mut stage: Stage) {
    stage.say("ready");
    stage.hear().await;
    let locks = stage.client().await;
    let guard = locks.lock(stage.need("name")).await.expect("a grant");
    stage.say(format!("granted {}", guard.token()));
    let _ = guard.release().await.expect("an answer");
    locks.close().await;
}

/// Takes up a ticket and ends the hold.
pub(super) async fn resume(stage: Stage) {
    let locks = stage.client().await;
    let ticket: Ticket = stage.need("ticket").parse().expect("a ticket");
    let guard = locks.resume(&ticket).await.expect("a hold to take up");
    stage.say(format!("resumed {}", guard.token()));
    stage.say(format!("release {}", give_back(Some(guard)).await));
}
