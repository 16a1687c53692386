//! Bounds at a node: the agreed `max_ttl`, and how much one call may touch.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use distlock_core::quorum::{Bid, Heal, NodeDue, Position, Round, Vote};
use distlock_core::{
    Ask, Clock, FullName, Label, Mode, Name, Namespace, Owner, Patience, ReqId, Token,
};

use super::super::{plain, record, replies, script_calls};
use super::scene::Scene;
use crate::connection::Call;
use crate::quarantine::Agreed;

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(600);

/// An exclusive request of a new owner.
pub(super) fn ask(name: &str, ttl: Duration) -> Arc<Ask> {
    Arc::new(Ask {
        lock: FullName { space: Namespace::default(), name: Name::new(name).unwrap() },
        req: ReqId::random(),
        owner: Owner::new(),
        mode: Mode::Exclusive,
        ttl,
        patience: Patience::Forever,
        min_hold: Duration::ZERO,
        lock_delay: Duration::ZERO,
        label: Label::new("x"),
        block: NonZeroU32::MIN,
    })
}

/// The first bid of a request, with its token and ticket from the clock.
pub(super) fn bid(ask: &Arc<Ask>, now: u64, wait: Option<Duration>) -> Bid {
    let place = wait.map(|wait| Position { ticket: now, wait, backed: false });
    Bid { ask: ask.clone(), round: Round(1), token: Token::new(now).unwrap(), place }
}

fn agreed(marker: Option<&str>, max_ttl: Duration) -> Agreed {
    Agreed { marker: marker.map(str::to_owned), max_ttl, keep: LONG }
}

async fn refused(scene: &mut Scene, call: &Call) -> String {
    let answer = call.by_text().query_async::<redis::Value>(&mut scene.link).await;
    answer.unwrap_err().code().unwrap_or_default().to_owned()
}

/// What is left of a request's lease, by the node's clock.
async fn left(scene: &mut Scene, ask: &Ask) -> Duration {
    let seen = scene.run(script_calls::inspect(std::slice::from_ref(&ask.lock)).by_sha()).await;
    let (now, states) = record::states(&seen).unwrap();
    let hold = states[0].hold.as_ref().expect("held");
    Duration::from_micros(hold.expires.0 - now.0)
}

/// A bid for a longer lease is refused, a renewal and a heal are cut to it, and a client that agreed on
/// another length gets nothing.
#[tokio::test]
async fn no_lease_at_a_node_is_longer_than_was_agreed_on() {
    let mut scene = Scene::new().await;
    let one = agreed(None, SECOND);
    let propose = |ask: &Arc<Ask>, agreed: &Agreed| {
        script_calls::propose(
            &bid(ask, Clock::system().wall_micros(), None),
            "via-1",
            Duration::ZERO,
            agreed,
        )
    };
    assert_eq!(refused(&mut scene, &propose(&ask("a", LONG), &one)).await, "DLTTL");
    let held = ask("a", SECOND);
    let taken = scene.run(propose(&held, &one).by_sha()).await;
    let (vote, _) = replies::vote(&taken, "").unwrap();
    let Vote::Granted { generation, .. } = vote else { panic!("{vote:?}") };
    let due = [NodeDue { key: held.key(), generation: Some(generation), ttl: LONG }];
    scene.run(script_calls::renew(&due, &one).by_sha()).await;
    assert!(left(&mut scene, &held).await <= SECOND);
    let healing = [Heal { ask: ask("b", LONG), round: Round(1), token: Token::new(7).unwrap() }];
    scene.run(script_calls::heal(&healing, "via-1", Duration::ZERO, &one).by_sha()).await;
    assert!(left(&mut scene, &healing[0].ask).await <= SECOND);
    let other = agreed(Some("rl:epoch"), 2 * SECOND);
    for call in [
        propose(&held, &other),
        script_calls::renew(&due, &other),
        script_calls::heal(&healing, "via-1", Duration::ZERO, &other),
    ] {
        assert_eq!(refused(&mut scene, &call).await, "DLMAX", "{}", call.script.name);
    }
}

/// The recipe of other libraries keeps to it as well.
#[tokio::test]
async fn no_plain_lease_is_longer_than_was_agreed_on() {
    let mut scene = Scene::new().await;
    let keys = || vec![b"name".to_vec(), b"info".to_vec()];
    let (req, word) = (ReqId::random().to_string().into_bytes(), |n: &str| n.as_bytes().to_vec());
    let propose = |ttl: &str, agreed: &Agreed| {
        let mut args = vec![req.clone(), word("1"), word(ttl), word("o"), word("l"), word("7")];
        args.push(word("0"));
        args.extend(agreed.args());
        Call { script: &plain::PROPOSE, keys: keys(), args }
    };
    let renew = |ttl: &str, agreed: &Agreed| {
        let mut args = agreed.args().to_vec();
        args.extend([req.clone(), word(""), word(ttl)]);
        Call { script: &plain::RENEW, keys: keys(), args }
    };
    let one = agreed(None, SECOND);
    assert_eq!(refused(&mut scene, &propose("600000", &one)).await, "DLTTL");
    scene.run(propose("1000", &one).by_text()).await;
    scene.run(renew("600000", &one).by_text()).await;
    let mut left = redis::cmd("PTTL");
    left.arg("name");
    let redis::Value::Int(left) = scene.run(left).await else { panic!("no number") };
    assert!((1..=1000).contains(&left), "renewed to {left} ms");
    let other = agreed(Some("rl:epoch"), 2 * SECOND);
    for call in [propose("1000", &other), renew("1000", &other)] {
        assert_eq!(refused(&mut scene, &call).await, "DLMAX", "{}", call.script.name);
    }
}

/// More waiters are over than one call may touch: each move drops some of them.
#[tokio::test]
async fn a_crowd_that_is_over_is_dropped_in_steps() {
    const CROWD: u64 = 2_300;
    let mut scene = Scene::new().await;
    let holder = ask("crowd", LONG);
    let lock = std::slice::from_ref(&holder.lock);
    let now = Clock::system().wall_micros();
    let propose = |ask: &Arc<Ask>, wait| {
        script_calls::propose(&bid(ask, now, wait), "via-1", Duration::ZERO, &Agreed::NONE)
    };
    scene.step(now, propose(&holder, None), lock).await;
    for _ in 0..CROWD {
        let call = propose(&ask("crowd", LONG), Some(SECOND));
        scene.just(now, call).await;
    }
    // Somebody who waits on keeps the line from being forgotten as a whole.
    let (_, seen) = scene.step(now, propose(&ask("crowd", LONG), Some(LONG)), lock).await;
    assert_eq!(seen[0].line.len() as u64, CROWD + 1);
    let due = [NodeDue { key: holder.key(), generation: None, ttl: LONG }];
    let mut lengths = Vec::new();
    for _ in 0..3 {
        let renew = script_calls::renew(&due, &Agreed::NONE);
        let (_, seen) = scene.step(now + 2_000_000, renew, lock).await;
        lengths.push(seen[0].line.len() as u64);
    }
    assert_eq!(lengths, [CROWD - 999, CROWD - 1999, 1]);
}

/// A force without a token is about a holder that another program made, and about nobody else: one of
/// ours may have come in between the look and the force.
#[tokio::test]
async fn a_plain_force_without_a_token_leaves_our_holders_alone() {
    let mut scene = Scene::new().await;
    let (keys, word) = (vec![b"name".to_vec(), b"info".to_vec()], |n: &str| n.as_bytes().to_vec());
    let force = |token: &str| {
        let args = vec![word(token), word("n"), word("1000")];
        Call { script: &plain::FORCE, keys: keys.clone(), args }
    };
    let mut args = vec![ReqId::random().to_string().into_bytes()];
    args.extend(["1", "1000", "o", "l", "7", "0"].map(word));
    args.extend(agreed(None, SECOND).args());
    let take = Call { script: &plain::PROPOSE, keys: keys.clone(), args };
    scene.run(take.by_text()).await;
    assert_eq!(scene.run(force("").by_text()).await, redis::Value::Int(0));
    assert_eq!(scene.run(force("8").by_text()).await, redis::Value::Int(0));
    assert_eq!(scene.run(force("7").by_text()).await, redis::Value::Int(1));
    let mut foreign = redis::cmd("SET");
    foreign.arg("name").arg("another program's").arg("PX").arg(60_000);
    scene.run(foreign).await;
    assert_eq!(scene.run(force("7").by_text()).await, redis::Value::Int(0));
    assert_eq!(scene.run(force("").by_text()).await, redis::Value::Int(1));
}
