//! Where a bound is met: more waiters than one call may touch, a server without memory, a record
//! of a newer layout.

use std::time::Duration;

use distlock_core::state::Pulse;
use distlock_core::{Ask, Kind, Reply, ReqId};

use super::cost::ask;
use super::scene::Scene;
use crate::keys::Keys;
use crate::quarantine::Agreed;
use crate::script_calls::{self, ALL_COUNTED, Message};

const TTL: Duration = Duration::from_secs(600);
/// More than two calls may touch.
const CROWD: usize = 2_300;

/// Nobody listens to the many ahead: each call passes over some, and the one who listens is reached
/// by the third, in its turn, though nobody else did anything.
#[tokio::test]
async fn a_crowd_that_does_not_listen_is_passed_over_in_steps() {
    let mut scene = Scene::new().await;
    let holder = ask("crowd");
    let keys = Keys::of(&holder.lock);
    let join = |a, via| script_calls::acquire(&keys, a, Some(TTL), via, ALL_COUNTED, &Agreed::NONE);
    scene.send(&[join(&holder, "")]).await;
    let crowd: Vec<_> = (0..CROWD).map(|_| ask("crowd")).collect();
    for some in crowd.chunks(500) {
        scene.send(&some.iter().map(|a| join(a, "deaf")).collect::<Vec<_>>()).await;
    }
    let listener = ask("crowd");
    let replies = scene
        .send(&[join(&listener, "via-1"), script_calls::release(&keys, &holder.req, ALL_COUNTED)])
        .await;
    let place = script_calls::acquired(&replies[0], TTL).unwrap();
    assert!(matches!(place, Reply::Waiting { ahead, .. } if ahead as usize == CROWD), "{place:?}");
    let nobody = [(keys.clone(), ReqId::random(), TTL)];
    let calls = [0; 2].map(|_| script_calls::heartbeat(&nobody, "", ALL_COUNTED));
    scene.send(&calls).await;
    let heard = Message::parse(&scene.sink.next(), Keys::lock_of).expect("a message");
    assert_eq!(heard.key.req, listener.req);
    let seen = scene.send(&[script_calls::inspect(std::slice::from_ref(&keys))]).await;
    let seen = script_calls::inspected(&seen[0], std::slice::from_ref(&keys)).unwrap();
    assert_eq!((seen[0].holds[0].req, seen[0].waiters.len()), (listener.req, CROWD));
}

/// More waiters are over than one call drops: none of them is ever granted the lock.
#[tokio::test]
async fn a_crowd_that_is_over_is_dropped_in_steps_and_never_granted() {
    let mut scene = Scene::new().await;
    let holder = ask("over");
    let (keys, locks) = (Keys::of(&holder.lock), [holder.lock.clone()]);
    let time: (u64, u64) = redis::cmd("TIME").query_async(&mut scene.link).await.unwrap();
    let mut now = time.0 * 1_000_000;
    let join =
        |a: &Ask, wait| script_calls::acquire(&keys, a, Some(wait), "", ALL_COUNTED, &Agreed::NONE);
    scene.step(now, join(&holder, TTL), &locks).await;
    for _ in 0..CROWD {
        scene.just(now, join(&ask("over"), Duration::from_secs(1))).await;
    }
    let alive = ask("over");
    scene.step(now, join(&alive, TTL), &locks).await;
    now += 2_000_000;
    let (_, states) =
        scene.step(now, script_calls::release(&keys, &holder.req, ALL_COUNTED), &locks).await;
    assert!(states[0].holds.iter().all(|h| h.claim.req == alive.req), "{:?}", states[0].holds);
    let beat = [(keys.clone(), alive.req, TTL)];
    let mut pulse = Vec::new();
    for _ in 0..2 {
        let (reply, _) =
            scene.step(now, script_calls::heartbeat(&beat, "", ALL_COUNTED), &locks).await;
        pulse = script_calls::pulses(&reply, 1).unwrap();
    }
    assert_eq!(pulse, [Reply::Pulse(Pulse::Turn)]);
}

#[tokio::test]
async fn a_server_without_memory_grants_nothing_but_keeps_and_frees() {
    let mut scene = Scene::new().await;
    let held = ask("full");
    let keys = Keys::of(&held.lock);
    let take = |a| script_calls::acquire(&keys, a, None, "", ALL_COUNTED, &Agreed::NONE);
    scene.send(&[take(&held)]).await;
    let mut limit = redis::cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg(1);
    scene.run(limit).await;
    let refused = take(&ask("full")).by_sha().query_async::<redis::Value>(&mut scene.link).await;
    assert_eq!(refused.unwrap_err().code(), Some("OOM"));
    let due = [(keys.clone(), held.req, TTL)];
    let replies = scene
        .send(&[
            script_calls::renew(&due, ALL_COUNTED, &Agreed::NONE),
            script_calls::heartbeat(&due, "", ALL_COUNTED),
            script_calls::release(&keys, &held.req, ALL_COUNTED),
            script_calls::cancel(&keys, &ReqId::random(), ALL_COUNTED),
        ])
        .await;
    let renewed = script_calls::renewals(&replies[0], 1).unwrap();
    assert!(matches!(renewed[0], Reply::Renewed { .. }), "{renewed:?}");
    assert_eq!(script_calls::released(&replies[2]).unwrap(), Reply::Released);
    assert_eq!(script_calls::cancelled(&replies[3]).unwrap(), Reply::Cancelled);
}

#[tokio::test]
async fn a_record_of_a_newer_layout_is_refused_and_left_alone() {
    let mut scene = Scene::new().await;
    let asked = ask("newer");
    let keys = Keys::of(&asked.lock);
    let newer = [2u8; 200];
    let mut set = redis::cmd("SET");
    set.arg(&keys.lock).arg(&newer);
    scene.run(set).await;
    let due = [(keys.clone(), asked.req, TTL)];
    for call in [
        script_calls::acquire(&keys, &asked, None, "", ALL_COUNTED, &Agreed::NONE),
        script_calls::release(&keys, &asked.req, ALL_COUNTED),
        script_calls::renew(&due, ALL_COUNTED, &Agreed::NONE),
    ] {
        let got = call.by_sha().query_async::<redis::Value>(&mut scene.link).await;
        assert_eq!(got.unwrap_err().code(), Some("DLLAYOUT"), "{}", call.script.name);
    }
    let seen = scene.send(&[script_calls::inspect(std::slice::from_ref(&keys))]).await;
    let e = script_calls::inspected(&seen[0], std::slice::from_ref(&keys)).unwrap_err();
    assert_eq!(e.kind(), Kind::Layout);
    let mut get = redis::cmd("GET");
    get.arg(&keys.lock);
    assert_eq!(scene.run(get).await, redis::Value::BulkString(newer.to_vec()));
}

/// Whoever asks, by whatever call: no lease is longer than the clients of the server agreed on, nor is
/// one written by a client that agreed on another length.
#[tokio::test]
async fn no_lease_is_longer_than_was_agreed_on() {
    let mut scene = Scene::new().await;
    let asked = ask("agreed");
    let keys = Keys::of(&asked.lock);
    let second = Duration::from_secs(1);
    let marker = |marker: Option<&str>, max_ttl| Agreed {
        marker: marker.map(str::to_owned),
        max_ttl,
        keep: TTL,
    };
    let take = |ttl, agreed: &Agreed| {
        let ask = Ask { ttl, ..asked.clone() };
        script_calls::acquire(&keys, &ask, None, "", ALL_COUNTED, agreed)
    };
    let fails = async |scene: &mut Scene, call: crate::connection::Call| {
        let got = call.by_sha().query_async::<redis::Value>(&mut scene.link).await;
        got.unwrap_err().code().unwrap_or_default().to_owned()
    };
    let one = marker(None, second);
    assert_eq!(fails(&mut scene, take(TTL, &one)).await, "DLTTL");
    // In a batch it is not granted, and the script that it is then asked by refuses it.
    let (long, short) = (Ask { ttl: TTL, ..ask("long") }, Ask { ttl: second, ..ask("short") });
    let (at_long, at_short) = (Keys::of(&long.lock), Keys::of(&short.lock));
    let both = || [(&at_long, &long), (&at_short, &short)].into_iter();
    let tokens = scene.send(&[script_calls::acquire_many(both(), "", &one)]).await;
    let redis::Value::Array(tokens) = &tokens[0] else { panic!("{tokens:?}") };
    assert_eq!(tokens[0], redis::Value::Int(0));
    assert!(matches!(tokens[1], redis::Value::Int(1..)), "{tokens:?}");
    scene.send(&[take(second, &one)]).await;
    let due = [(keys.clone(), asked.req, TTL)];
    // By the usual case, and with somebody in line by the full rules.
    for waiter in [false, true] {
        if waiter {
            let next = ask("agreed");
            let join =
                script_calls::acquire(&keys, &next, Some(TTL), "", ALL_COUNTED, &Agreed::NONE);
            scene.send(&[join]).await;
        }
        let renewed = scene.send(&[script_calls::renew(&due, ALL_COUNTED, &one)]).await;
        let renewed = script_calls::renewals(&renewed[0], 1).unwrap();
        let Reply::Renewed { remaining, .. } = renewed[0] else { panic!("{renewed:?}") };
        assert!(remaining <= second, "a lease of {remaining:?}");
    }
    // The marker says another length, or nothing.
    let mut set = redis::cmd("HSET");
    set.arg("dl:epoch").arg("max").arg(second.as_micros().to_string());
    for there in [false, true] {
        if there {
            scene.run(set.clone()).await;
        }
        let other = marker(Some("dl:epoch"), 2 * second);
        assert_eq!(fails(&mut scene, take(second, &other)).await, "DLMAX");
        assert_eq!(
            fails(&mut scene, script_calls::renew(&due, ALL_COUNTED, &other)).await,
            "DLMAX"
        );
        assert_eq!(
            fails(&mut scene, script_calls::acquire_many(both(), "", &other)).await,
            "DLMAX"
        );
    }
    let same = marker(Some("dl:epoch"), second);
    let renewed = scene.send(&[script_calls::renew(&due, ALL_COUNTED, &same)]).await;
    assert!(matches!(script_calls::renewals(&renewed[0], 1).unwrap()[0], Reply::Renewed { .. }));
}
