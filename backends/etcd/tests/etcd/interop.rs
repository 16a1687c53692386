//! Other clients of the same keys: etcd's own, and the caller's transactions.

use std::process::Stdio;

use distlock_core::{Force, Forced, Kind};
use distlock_testkit::servers::{Server, etcdctl, etcdctl_command};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::kit::{
    LONG, Named, all_free, busy, client, give_back, line_of, ms, run, server, soon, strict, take,
    task,
};

pub(crate) const TRIALS: &[Named] = &[
    ("etcdctl_waits_for_us_and_we_for_it", both_ways),
    ("a_lock_of_etcdctl_is_seen_and_can_be_taken_away_at_once", theirs_is_seen),
    ("a_proof_fails_in_a_transaction_once_the_lock_is_gone", proof),
    ("only_keys_below_one_prefix_are_written", one_prefix),
];

/// `etcdctl lock`, which says the key it holds.
fn lock(server: &Server, name: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child =
        etcdctl_command(server, &["lock", name]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Ends it in order: it gives its lock back.
async fn end(mut child: Child) {
    let pid = child.id().unwrap().to_string();
    Command::new("kill").args(["-TERM", &pid]).status().await.unwrap();
    soon("etcdctl ends", child.wait()).await.unwrap();
}

fn both_ways() {
    run(async {
        let server = server().await;
        let locks = strict(&format!("etcd://{}", server.addr())).await;
        let ours = take(&locks, "orders", LONG).await;
        let (theirs, mut says) = lock(&server, "/distlock/orders");
        line_of(&locks, "orders", 1).await;
        // Behind it, one of ours again.
        let next = locks.lock("orders").ttl(LONG);
        let next = task(async move { next.acquire().await.unwrap() });
        line_of(&locks, "orders", 2).await;
        assert!(ours.check().is_ok());
        give_back(ours).await;
        let key = soon("etcdctl has it", says.next_line()).await.unwrap().unwrap();
        assert!(key.starts_with("/distlock/orders/"), "{key}");
        assert_eq!(locks.show("orders").await.unwrap().unwrap().waiters.len(), 1);
        assert!(!next.is_finished());
        end(theirs).await;
        give_back(soon("our turn", next).await.unwrap()).await;
        all_free(&locks, "orders").await;
    });
}

fn theirs_is_seen() {
    run(async {
        let server = server().await;
        let locks = client(&server).await;
        let (theirs, mut says) = lock(&server, "/distlock/a");
        soon("etcdctl has it", says.next_line()).await.unwrap().unwrap();
        let busy = busy(&locks, "a").await;
        assert!(busy.to_string().contains("another client"), "{busy}");
        // It cannot be told to stop.
        let e = locks.force("a", None, Force::Revoke).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Unsupported);
        assert!(e.hint().is_some_and(|h| h.contains("--now")), "{e:?}");
        assert_eq!(locks.force("a", None, Force::Now).await.unwrap(), Forced::Done);
        give_back(take(&locks, "a", LONG).await).await;
        end(theirs).await;
    });
}

async fn compared(server: &Server, proof: &distlock_core::Proof) -> String {
    let mut command = etcdctl_command(server, &["txn"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text = format!("create(\"{}\") = \"{}\"\n\nput stock 7\n\n\n", proof.key, proof.version);
    child.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn proof() {
    run(async {
        let server = server().await;
        let locks = client(&server).await;
        let guard = take(&locks, "a", LONG).await;
        let proof = guard.proof().expect("etcd has proofs");
        assert_eq!(u64::try_from(proof.version).unwrap() << 16, guard.token().get());
        assert!(compared(&server, &proof).await.contains("SUCCESS"));
        give_back(guard).await;
        assert!(compared(&server, &proof).await.contains("FAILURE"));
        // Nor does it hold for who comes next.
        let next = take(&locks, "a", LONG).await;
        assert!(compared(&server, &proof).await.contains("FAILURE"));
        assert!(compared(&server, &next.proof().unwrap()).await.contains("SUCCESS"));
    });
}

fn one_prefix() {
    run(async {
        let server = server().await;
        let locks = strict(&format!("etcd://{}", server.addr())).await;
        let held = take(&locks, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await.map(drop) });
        line_of(&locks, "a", 1).await;
        let lingering = locks.lock("b").ttl(LONG).min_hold(ms(20_000)).acquire().await.unwrap();
        give_back(lingering).await;
        let all = etcdctl(&server, &["get", "", "--from-key", "--keys-only"]).await.unwrap();
        let keys: Vec<_> = all.lines().filter(|l| !l.is_empty()).collect();
        assert!(keys.len() >= 4 && keys.iter().all(|k| k.starts_with("/distlock/")), "{keys:?}");
        waiting.abort();
        line_of(&locks, "a", 0).await;
        give_back(held).await;
    });
}
