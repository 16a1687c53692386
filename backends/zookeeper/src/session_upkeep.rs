//! What keeps a session: heartbeats, watches on what is held, and sweeping.
//!
//! One task a session, on the library's own thread. It ends with the session, and ends it when
//! nobody has used it for a while: an idle client writes nothing.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use distlock_core::{Clock, Error, Event, Key, LossReason, Wake, engine};
use zookeeper_client::Error as Zk;

use crate::errors::{gone, trouble};
use crate::node_names;
use crate::own_entry::OwnEntry;
use crate::record::Record;
use crate::session::Session;
use crate::store::Shared;

/// Heartbeats in one timeout.
const BEATS: u32 = 12;
/// What is held for longer than this is watched.
const LOOK: Duration = Duration::from_secs(1);
/// A session that nobody has used for this long is let go.
const IDLE: Duration = Duration::from_secs(60);

/// Looks after a session until it ends.
pub(crate) fn start(shared: &Arc<Shared>, session: &Arc<Session>) {
    let (shared, session) = (Arc::downgrade(shared), session.clone());
    engine::spawn(async move {
        let mut state = session.state();
        let Some(clock) = shared.upgrade().map(|s| s.clock.clone()) else { return };
        let pace = session.ttl / BEATS;
        let mut next = clock.now().plus(pace);
        while !session.is_over() {
            let wake = next.min(clock.now().plus(LOOK));
            tokio::select! {
                biased;
                () = session.hurry.notified() => {}
                // What was under way when a connection broke may arrive, or not, or twice.
                _ = state.changed() => session.doubt(clock.now()),
                () = clock.sleep_until(wake) => {}
            }
            // Without its store nobody keeps it any more.
            let Some(shared) = shared.upgrade().filter(|s| !done(s, &session)) else { break };
            if clock.now() >= next && !session.is_over() {
                next = clock.now().plus(pace);
                beat(&shared, &session, pace).await;
            }
            watch(&shared, &session);
        }
        session.end();
        if let Some(shared) = shared.upgrade() {
            for key in session.take() {
                shared.forget(&key.req);
                shared.tell(Wake::Event(Event::Lost(key, LossReason::Disconnected)));
            }
        }
    });
}

fn done(shared: &Arc<Shared>, session: &Arc<Session>) -> bool {
    if !session.is_idle() {
        return false;
    }
    let unused = shared.clock.now().since(session.used()) >= IDLE;
    session.retired.load(Ordering::Acquire) || (unused && shared.pool.drop_idle(session))
}

async fn beat(shared: &Arc<Shared>, session: &Arc<Session>, pace: Duration) {
    // One that hangs must not hold up the next for long.
    let beat = shared.clock.timeout(pace * 3, session.show(shared)).await;
    if let Some(Err(e)) = &beat {
        tracing::debug!(store = shared.site, error = %e, "no answer to a heartbeat");
    }
    if matches!(beat, Some(Ok(()))) && session.is_doubtful() {
        let swept = shared.clock.timeout(pace * 3, sweep(shared, session)).await;
        if let Some(Err(e)) = swept {
            tracing::debug!(store = shared.site, error = %e, "not swept");
        }
    }
}

/// Removes what stands in the queue in the name of this session and belongs to no request: one that
/// arrived after it had been given up.
async fn sweep(shared: &Arc<Shared>, session: &Arc<Session>) -> Result<(), Error> {
    let root = &shared.options.root;
    let now = shared.clock.now();
    let client = session.client().map_err(trouble)?;
    client.sync(root).await.map_err(|e| session.failed(e))?;
    let mine = client.list_ephemerals(root).await.map_err(|e| session.failed(e))?;
    for path in mine {
        let Some((_, name)) = path.rsplit_once('/') else { continue };
        let Some(req) = node_names::request(name) else { continue };
        if !session.accounts_for(&req, name) {
            tracing::debug!(store = shared.site, path, "swept what nobody asked for any more");
            gone(client.delete(&path, None).await).map_err(|e| session.failed(e))?;
        }
    }
    session.swept(now);
    Ok(())
}

/// Watches what is held, so that an operator's word is heard at once, and that others wait.
fn watch(shared: &Arc<Shared>, session: &Arc<Session>) {
    for (key, place) in session.unwatched() {
        let clock = shared.clock.clone();
        let (shared, session) = (Arc::downgrade(shared), session.clone());
        engine::spawn(async move {
            let why = until_ended(&clock, &shared, &session, &key, &place).await;
            if let Some(why) = why
                && session.knows(&key.req)
                && let Some(shared) = shared.upgrade()
            {
                shared.tell(Wake::Event(Event::Lost(key, why)));
            }
        });
    }
}

/// Why a hold ended, as [`ended`]; tells once, meanwhile, that others wait.
async fn until_ended(
    clock: &Clock,
    shared: &Weak<Shared>,
    session: &Arc<Session>,
    key: &Key,
    place: &OwnEntry,
) -> Option<LossReason> {
    let mut joined_behind = pin!(joined_behind(clock, session, place));
    let mut ended = pin!(ended(session, key, place));
    let mut alone = true;
    loop {
        tokio::select! {
            biased;
            why = &mut ended => return why,
            () = session.ended() => return None,
            () = &mut joined_behind, if alone => {
                alone = false;
                if let Some(shared) = shared.upgrade() {
                    shared.tell(Wake::Event(Event::Contended(key.clone())));
                }
            }
        }
    }
}

/// Completes when another entry stands behind one.
async fn joined_behind(clock: &Clock, session: &Arc<Session>, place: &OwnEntry) {
    while let Ok(client) = session.client() {
        let Ok((children, watcher)) = client.list_and_watch_children(place.parent()).await else {
            clock.sleep(LOOK).await;
            continue;
        };
        drop(client);
        let line = node_names::in_order(&children);
        if line.last().is_some_and(|last| last.name != place.name()) {
            return;
        }
        let _ = watcher.changed().await;
    }
    std::future::pending::<()>().await;
}

/// Why an entry ended, or was taken away, without its client's doing; `None` when it was not.
async fn ended(session: &Arc<Session>, key: &Key, place: &OwnEntry) -> Option<LossReason> {
    let client = session.client().ok()?;
    while session.knows(&key.req) {
        match client.get_and_watch_data(&place.0.path).await {
            Ok((data, _, watcher)) => {
                if Record::read(&data).is_none_or(|r| r.revoked) {
                    return Some(LossReason::Revoked);
                }
                let _ = watcher.changed().await;
            }
            Err(Zk::NoNode) => return Some(LossReason::Gone),
            Err(_) => {
                place.watch_again();
                return None;
            }
        }
        if session.is_over() {
            return None;
        }
    }
    None
}
