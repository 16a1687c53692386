//! Other kinds of clients on the same path, and transactions of one's own.

use distlock_core::backend::Force;
use distlock_core::{Kind, LossReason};
use zookeeper_client::{Acls, CreateMode, Error as Zk, LockOptions, LockPrefix};

use crate::kit::{
    LONG, Named, Site, crowd_of, give_back, ms, raw, run, server, soon, take, task, until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("a_curator_mutex_and_ours_exclude_each_other", curator),
    ("entries_made_as_curator_makes_them_are_waited_for_and_shown", wire_format),
    ("what_others_keep_in_a_locks_node_stays", data_stays),
    ("a_proof_holds_as_long_as_the_lock", proof),
    ("a_revoked_holder_is_told_at_once", revoked),
];

/// `zookeeper-client` speaks Curator's protocol with its own code.
fn curator() {
    run(async {
        let site = Site::new();
        let (locks, other) = (site.client(server()).await, raw(server()).await);
        let held = take(&locks, "a", LONG).await;
        let dir = site.node("a");
        let lock = || {
            let options = LockOptions::new(Acls::anyone_all());
            other.lock(LockPrefix::new_curator(&dir, "lock-").unwrap(), b"10.0.0.1", options)
        };
        let mut theirs = Box::pin(lock());
        let patient = distlock_core::Clock::system();
        assert!(patient.timeout(ms(300), &mut theirs).await.is_none(), "ours is held");
        crowd_of(&locks, "a", 2).await;
        give_back(held).await;
        let theirs = soon("their turn", theirs).await.unwrap();
        let busy = locks.lock("a").ttl(LONG).try_acquire().await.unwrap().unwrap_err();
        assert!(busy.to_string().contains("another kind of client"), "{busy}");
        let lock = locks.lock("a").ttl(LONG);
        let ours = task(async move { lock.acquire().await });
        crowd_of(&locks, "a", 2).await;
        drop(theirs);
        give_back(soon("our turn", ours).await.unwrap().unwrap()).await;
    });
}

/// Curator's own rule: the lowest number holds. Foreign entries count whatever their mode.
fn wire_format() {
    run(async {
        let site = Site::new();
        let (locks, other) = (site.client(server()).await, raw(server()).await);
        let held = take(&locks, "a", LONG).await;
        let made = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/_c_0f9f7a0c-9a55-4b3e-8a4e-7d3b0c2f1e11-lock-", site.node("a"));
        let (_, number) = other.create(&prefix, b"10.1.2.3", &made).await.unwrap();
        let mut children = other.list_children(&site.node("a")).await.unwrap();
        // As LockInternals sorts: by what follows the lock's name.
        children.sort_by_key(|c| c.rsplit_once("lock-").unwrap().1.to_owned());
        assert_eq!(children.len(), 2);
        assert!(children[1].ends_with(&number.to_string()), "{children:?}");
        let token = held.token();
        give_back(held).await;
        let shared = locks.lock("a").ttl(LONG).shared().try_acquire().await.unwrap();
        assert!(shared.is_err(), "a foreign entry is exclusive");
        let e = locks.force("a", None, Force::Revoke).await.unwrap_err();
        assert!(e.kind() == Kind::Unsupported && e.hint().is_some(), "{e:?}");
        other.delete(&format!("{prefix}{number}"), None).await.unwrap();
        let next = take(&locks, "a", LONG).await;
        assert!(next.token() > token);
    });
}

/// Curator's recipes let their users keep something in a lock's own node.
fn data_stays() {
    run(async {
        let site = Site::new();
        let (locks, other) = (site.client(server()).await, raw(server()).await);
        give_back(take(&locks, "a", LONG).await).await;
        other.set_data(&site.node("a"), b"theirs", None).await.unwrap();
        for _ in 0..2 {
            give_back(take(&locks, "a", LONG).await).await;
        }
        let (data, stat) = other.get_data(&site.node("a")).await.unwrap();
        assert_eq!((data.as_slice(), stat.version), (&b"theirs"[..], 1));
    });
}

fn proof() {
    run(async {
        let site = Site::new();
        let (locks, other) = (site.client(server()).await, raw(server()).await);
        let target = format!("{}-target", site.0);
        let made = CreateMode::Persistent.with_acls(Acls::anyone_all());
        other.create(&target, b"0", &made).await.unwrap();
        let write = async |proof: &distlock_core::Proof| {
            let mut both = other.new_multi_writer();
            both.add_check_version(&proof.key, i32::try_from(proof.version).unwrap()).unwrap();
            both.add_set_data(&target, b"1", None).unwrap();
            both.commit().await.map(drop).map_err(Zk::from)
        };
        // Granted at once, and after a wait.
        let first = take(&locks, "a", LONG).await;
        let lock = locks.lock("a").ttl(LONG);
        let second = task(async move { lock.acquire().await });
        let proof = first.proof().unwrap();
        // The lease that it relies on is not handed on: whoever waits asks for one of its own.
        crowd_of(&locks, "a", 2).await;
        assert_eq!(write(&proof).await, Ok(()));
        give_back(first).await;
        assert_eq!(write(&proof).await, Err(Zk::NoNode));
        let second = soon("its turn", second).await.unwrap().unwrap();
        let proof = second.proof().unwrap();
        assert_eq!(write(&proof).await, Ok(()));
        // Taken away by an operator, it proves nothing any more, though the entry is still there.
        let _ = locks.force("a", None, Force::Revoke).await.unwrap();
        assert_eq!(write(&proof).await, Err(Zk::BadVersion));
    });
}

fn revoked() {
    run(async {
        let site = Site::new();
        let (locks, look) = (site.client(server()).await, site.client(server()).await);
        // Its TTL is long: it cannot be its renewal that finds out.
        let held = take(&locks, "a", LONG).await;
        let _ = look.force("a", Some(held.token()), Force::Revoke).await.unwrap();
        assert_eq!(soon("it is told", held.lost()).await.why, LossReason::Revoked);
        drop(held);
        crowd_of(&look, "a", 0).await;
        let held = take(&locks, "a", LONG).await;
        let _ = look.force("a", None, Force::Now).await.unwrap();
        assert_eq!(soon("it is told", held.lost()).await.why, LossReason::Gone);
        until("free", async || look.show("a").await.unwrap().is_none()).await;
    });
}
