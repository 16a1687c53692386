//! What is wrong is said, with what to do about it, and without a hang.

use std::time::Duration;

use distlock_core::{Clock, Error, Kind};
use distlock_testkit::servers::{Imposter, Port, Server, lonely_zookeeper};

use crate::kit::{LONG, Named, Site, connect, give_back, ms, run, server, take, timed};

pub(crate) const TRIALS: &[Named] = &[
    ("nobody_there_somebody_else_and_silence_are_unreachable", unreachable),
    ("a_wrong_password_is_a_matter_of_credentials", password),
    ("a_path_without_rights_is_a_matter_of_credentials", rights),
    ("a_login_that_protects_nothing_says_so", open_path),
    ("a_server_that_lost_the_others_is_refused", read_only),
    ("a_server_that_stops_answering_is_an_error_in_time", stopped),
];

/// Opening a session is given five seconds, telling a read-only server one more.
const IN_TIME: Duration = Duration::from_secs(20);

async fn refused(url: &str) -> Error {
    let (took, answer) = timed(connect(url)).await;
    let e = answer.map(drop).expect_err(url);
    assert!(took < IN_TIME, "{url}: {took:?}");
    assert!(e.hint().is_some(), "{e:?}");
    assert!(!format!("{e} {e:?}").contains("hunter2"), "{e:?}");
    e
}

fn unreachable() {
    run(async {
        let (garbage, silent) =
            (Imposter::garbage().await.unwrap(), Imposter::silent().await.unwrap());
        let nobody = Port::claim().unwrap();
        for addr in [garbage.addr(), silent.addr(), nobody.addr()] {
            let e = refused(&format!("zookeeper://u:hunter2@{addr}/x")).await;
            assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        }
    });
}

fn password() {
    run(async {
        let site = Site::new();
        let url = |login: &str| format!("zookeeper://{login}@{}{}?tick=200ms", server(), site.0);
        let locks = connect(&url("app:hunter2")).await.unwrap();
        give_back(take(&locks, "a", LONG).await).await;
        // The servers know no users: another password is another user.
        let e = refused(&url("app:hunter3")).await;
        assert_eq!(e.kind(), Kind::Credentials, "{e:?}");
        let e = refused(&format!("zookeeper://{}{}?tick=200ms", server(), site.0)).await;
        assert_eq!(e.kind(), Kind::Credentials, "{e:?}");
        let again = connect(&url("app:hunter2")).await.unwrap();
        give_back(take(&again, "a", LONG).await).await;
    });
}

fn rights() {
    run(async {
        let site = Site::new();
        let url = |login: &str, path: &str| {
            format!("zookeeper://{login}{}{}{path}?tick=200ms", server(), site.0)
        };
        drop(connect(&url("app:hunter2@", "")).await.unwrap());
        let e = refused(&url("", "/below")).await;
        assert_eq!(e.kind(), Kind::Credentials, "{e:?}");
        // Where others may look, they may look and nothing else.
        let mine = format!("{}&acl=creator-read", url("app:hunter2@", "/shown"));
        drop(connect(&mine).await.unwrap());
        let e = refused(&url("", "/shown")).await;
        assert_eq!(e.kind(), Kind::Credentials, "{e:?}");
    });
}

/// Below a path that was made without a login everybody may make a lock's node first.
fn open_path() {
    run(async {
        let site = Site::new();
        let url = |login: &str, acl: &str| {
            format!("zookeeper://{login}{}{}?tick=200ms{acl}", server(), site.0)
        };
        drop(connect(&url("", "")).await.unwrap());
        for acl in ["&acl=creator", "&acl=creator-read"] {
            let e = refused(&url("app:hunter2@", acl)).await;
            assert_eq!(e.kind(), Kind::Credentials, "{e:?}");
        }
        // Who did not ask for it is let in, and told.
        let notes = async |login: &str, acl: &str| {
            connect(&url(login, acl)).await.unwrap().capability().notes.concat()
        };
        assert!(notes("app:hunter2@", "").await.contains("everybody may write"));
        assert!(!notes("", "").await.contains("everybody may write"));
        assert!(!notes("app:hunter2@", "&acl=open").await.contains("everybody may write"));
        let closed = Site::new();
        let url = format!("zookeeper://app:hunter2@{}{}?acl=creator", server(), closed.0);
        let locks = connect(&url).await.unwrap();
        assert!(!locks.capability().notes.concat().contains("everybody may write"));
    });
}

fn read_only() {
    run(async {
        let (q, e) = (Port::claim().unwrap(), Port::claim().unwrap());
        let lonely = Server::start(lonely_zookeeper(&q, &e)).await.unwrap();
        let e = refused(&format!("zookeeper://{}/x", lonely.addr())).await;
        assert_eq!(e.kind(), Kind::Refused, "{e:?}");
        assert!(e.is_transient(), "{e:?}");
    });
}

fn stopped() {
    run(async {
        let server = Server::start(distlock_testkit::servers::zookeeper()).await.unwrap();
        let site = Site::new();
        let locks = site.client(server.addr()).await;
        let held = take(&locks, "a", ms(4000)).await;
        server.pause();
        let asking = locks.lock("b").ttl(ms(4000)).try_acquire();
        let answer = Clock::system().timeout(IN_TIME, asking).await.expect("no hang");
        assert_eq!(answer.map(drop).unwrap_err().kind(), Kind::Unreachable);
        assert!(held.check().is_err(), "lost by its own deadline");
        server.resume();
        crate::kit::until("it goes on", async || {
            locks.lock("b").ttl(ms(4000)).try_acquire().await.is_ok_and(|a| a.is_ok())
        })
        .await;
    });
}
