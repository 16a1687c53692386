//! Servers one cannot work with: each is a clear error that says what to do, soon, and nothing is
//! left behind.

use std::net::SocketAddr;

use distlock_core::{Error, Kind, Outcome};
use distlock_testkit::servers::{Imposter, Port, Redis, Server, Wire, raw};
use tokio::net::TcpListener;

use crate::kit::{
    Named, all_free, client, connect, give_back, keys, ms, ours, run, said, soon, take, take_for,
    task, timed, until,
};

pub(crate) const TRIALS: &[Named] = &[
    ("wrong_and_missing_passwords_are_credentials", passwords),
    ("an_account_without_rights_is_told_which_it_needs", no_rights),
    ("the_rights_of_the_page_are_enough", enough_rights),
    ("the_rights_of_the_cluster_page_are_enough", enough_rights_in_a_cluster),
    ("no_server_and_no_redis_are_told_apart_and_soon", imposters),
    ("a_replica_is_refused", replica),
    ("a_server_with_as_many_clients_as_it_takes_is_unreachable", maxclients),
    ("a_server_that_loads_its_data_is_waited_for", loading),
    ("keys_of_another_type_are_left_alone", foreign_types),
    ("records_of_another_layout_are_left_alone", foreign_layout),
    ("wrong_urls_say_what_is_right", urls),
];

/// Connects in vain: soon, with a hint, and without the password in any text.
pub(crate) async fn refused(url: &str) -> Error {
    let (took, answer) = timed(soon("an answer", connect(url))).await;
    let e = answer.err().unwrap_or_else(|| panic!("{url} was taken"));
    assert!(took < ms(5000), "{took:?} {e:?}");
    assert!(e.hint().is_some_and(|h| !h.is_empty()), "{e:?}");
    assert!(!format!("{e:?}").contains("secret"), "{e:?}");
    assert_eq!(e.outcome(), Outcome::NotApplied, "{e:?}");
    e
}

/// Nobody of ours is connected and nothing was written.
async fn untouched(server: &Server) {
    until("no connection stays", async || ours(server).await.is_empty()).await;
    assert_eq!(keys(server).await, []);
}

fn passwords() {
    run(async {
        let locked = Redis::new().password("secret").start().await.unwrap();
        let addr = locked.addr();
        for url in [
            format!("redis://:secreT2@{addr}"),
            format!("redis://{addr}"),
            format!("redis://nobody:secret@{addr}"),
        ] {
            let e = refused(&url).await;
            assert_eq!(e.kind(), Kind::Credentials, "{url} {e:?}");
            assert!(e.hint().unwrap().contains("redis://"), "{e:?}");
            assert!(!e.is_transient());
        }
        let mut wire = Wire::to(addr).await.unwrap();
        wire.call(&["AUTH", "secret"]).await.unwrap().ok().unwrap();
        assert_eq!(wire.call(&["DBSIZE"]).await.unwrap().int(), Some(0));
        // The right one, with and without the name of the user.
        for login in [":secret", "default:secret"] {
            let url = format!("redis://{login}@{addr}?quarantine=off");
            let locks = connect(&url).await.unwrap();
            assert!(!locks.site().contains("secret"), "{}", locks.site());
            give_back(take(&locks, "a").await).await;
            locks.close().await;
        }
        // A server without a password takes any, as its own client would find.
        let open = Redis::new().start().await.unwrap();
        match connect(&format!("redis://:secret@{}?quarantine=off", open.addr())).await {
            Ok(locks) => give_back(take(&locks, "a").await).await,
            Err(e) => assert_eq!((e.kind(), e.hint().is_some()), (Kind::Credentials, true)),
        }
    });
}

fn no_rights() {
    run(async {
        let users = [
            "default on nopass ~* &* +@all",
            "blind on >secret ~dl:* &dl:* -@all +@connection",
            "other on >secret ~app:* &dl:* +@all",
            "deaf on >secret ~dl:* resetchannels +@all",
        ];
        let server = Redis::new().users(&users).start().await.unwrap();
        for user in ["blind", "other", "deaf"] {
            let e = refused(&format!("redis://{user}:secret@{}", server.addr())).await;
            assert_eq!(e.kind(), Kind::Credentials, "{user} {e:?}");
            assert!(e.hint().unwrap().contains("~dl:*"), "{e:?}");
        }
        until("no connection stays", async || ours(&server).await.is_empty()).await;
        // One who may enter but not use this key.
        let locks = client(&server, "quarantine=off").await;
        said(&server, &["ACL", "SETUSER", "default", "resetkeys", "~dl:epoch", "~dl:{:mine}*"])
            .await;
        let e = locks.lock("yours").try_acquire().await.unwrap_err();
        assert_eq!((e.kind(), e.outcome()), (Kind::Credentials, Outcome::NotApplied), "{e:?}");
        assert!(e.hint().is_some());
        give_back(take(&locks, "mine").await).await;
    });
}

fn line_of_page(page: &str) -> &str {
    page.lines().find_map(|l| l.strip_prefix("ACL SETUSER ")).unwrap()
}

fn enough_rights_in_a_cluster() {
    run(async {
        let page = include_str!("../../../../docs/stores/redis-cluster.md");
        let users = ["default on nopass ~* &* +@all", line_of_page(page)];
        let node = Redis::new().durable().users(&users).cluster_node().unwrap();
        let server = node.start().await.unwrap();
        said(&server, &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
        until("the cluster is up", async || {
            said(&server, &["CLUSTER", "INFO"]).await.contains("cluster_state:ok")
        })
        .await;
        let url = format!("redis+cluster://app:secret@{}", server.addr());
        let locks = soon("a client", connect(&url)).await.unwrap();
        let first = take_for(&locks, "a", ms(20_000)).await;
        let waits = crate::kit::waiter(&locks, "a", ms(20_000));
        crate::kit::line_of(&locks, "a", 1).await;
        assert_eq!(locks.list("").await.unwrap().len(), 1);
        give_back(first).await;
        soon("a turn", waits).await.unwrap();
    });
}

/// What an account for locks has no business with.
const FORBIDDEN: &[&[&str]] = &[
    &["flushall"],
    &["flushdb"],
    &["keys", "*"],
    &["rename", "dl:a", "dl:b"],
    &["swapdb", "0", "1"],
    &["config", "set", "save", ""],
    &["client", "kill", "127.0.0.1:1"],
    &["client", "list"],
    &["script", "flush"],
    &["script", "kill"],
    &["function", "flush"],
    &["acl", "list"],
    &["shutdown"],
];

fn enough_rights() {
    run(async {
        let page = include_str!("../../../../docs/stores/redis.md");
        let users = ["default on nopass ~* &* +@all", line_of_page(page)];
        let server = Redis::new().durable().users(&users).start().await.unwrap();
        let url = format!("redis://app:secret@{}", server.addr());
        let locks = soon("a client", connect(&url)).await.unwrap();
        // At once: the account may see that the server is durable, so there is no quarantine.
        let first = take_for(&locks, "a", ms(20_000)).await;
        let waits = crate::kit::waiter(&locks, "a", ms(20_000));
        crate::kit::line_of(&locks, "a", 1).await;
        assert_eq!(locks.list("").await.unwrap().len(), 1);
        give_back(first).await;
        soon("a turn", waits).await.unwrap();
        let held = take_for(&locks, "b", ms(20_000)).await;
        let forced = locks.force("b", None, distlock_core::backend::Force::Revoke).await.unwrap();
        assert_eq!(forced, distlock_core::backend::Forced::Done);
        drop(held);
        locks.close().await;
        // And no more than that.
        for page in [
            page,
            include_str!("../../../../docs/stores/redis-cluster.md"),
            include_str!("../../../../docs/stores/redis-plain.md"),
            include_str!("../../../../docs/stores/redlock.md"),
        ] {
            let words: Vec<&str> = line_of_page(page).split(' ').collect();
            said(&server, &[&["ACL", "SETUSER"], &words[..]].concat()).await;
            for command in FORBIDDEN {
                let told = said(&server, &[&["ACL", "DRYRUN", words[0]], *command].concat()).await;
                assert!(told.contains("no permissions"), "{command:?}: {told}");
            }
            said(&server, &["ACL", "DELUSER", words[0]]).await;
        }
    });
}

/// Accepts and closes at once.
async fn closing() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    task(async move { while listener.accept().await.is_ok() {} });
    addr
}

fn imposters() {
    run(async {
        let port = Port::claim().unwrap();
        let nobody = port.addr();
        let e = refused(&format!("redis://{nobody}")).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        assert!(e.is_transient() && e.to_string().contains(&nobody.to_string()), "{e}");

        let silent = Imposter::silent().await.unwrap();
        let url = format!("redis://{}?timeout=300ms", silent.addr());
        let (took, e) = timed(refused(&url)).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        assert!(took < ms(2000), "{took:?}");

        let closing = closing().await;
        let e = refused(&format!("redis://{closing}")).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");

        let garbage = Imposter::garbage().await.unwrap();
        let html = Imposter::saying(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let polite = Imposter::saying(b"+OK\r\n").await.unwrap();
        for imposter in [&garbage, &html, &polite] {
            let e = refused(&format!("redis://{}?timeout=1s", imposter.addr())).await;
            assert!(
                matches!(e.kind(), Kind::Store | Kind::Unreachable | Kind::Unsupported),
                "{e:?}"
            );
            // In a language for people.
            assert!(!e.message().contains("TypeError"), "{e:?}");
        }
        let none = refused("redis://no-such-host.invalid").await;
        assert_eq!(none.kind(), Kind::Unreachable, "{none:?}");
        let socket = refused("redis+unix:/no/such/redis.sock").await;
        assert_eq!(socket.kind(), Kind::Unreachable, "{socket:?}");
    });
}

fn replica() {
    run(async {
        let primary = Redis::new().start().await.unwrap();
        let replica = Redis::new().replica_of(primary.addr()).start().await.unwrap();
        let e = refused(&format!("redis://{}", replica.addr())).await;
        assert_eq!(e.kind(), Kind::Refused, "{e:?}");
        assert!(e.hint().unwrap().contains("primary"), "{e:?}");
        untouched(&replica).await;

        // One that becomes a replica under us: no guard, no hang, and back when it is one no more.
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        let (host, port) = (primary.addr().ip().to_string(), primary.addr().port().to_string());
        said(&server, &["REPLICAOF", &host, &port]).await;
        let e = soon("an answer", locks.lock("a").try_acquire()).await.unwrap_err();
        assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
        assert!(matches!(e.kind(), Kind::Refused | Kind::Unreachable), "{e:?}");
        said(&server, &["REPLICAOF", "NO", "ONE"]).await;
        until("it grants again", async || {
            locks.lock("a").try_acquire().await.is_ok_and(|answer| answer.is_ok())
        })
        .await;
    });
}

fn maxclients() {
    run(async {
        let server = Redis::new().arg("maxclients", "1").start().await.unwrap();
        let mut only = Wire::to(server.addr()).await.unwrap();
        only.call(&["PING"]).await.unwrap();
        let e = refused(&format!("redis://{}", server.addr())).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        assert!(e.hint().unwrap().contains("maxclients"), "{e:?}");
        assert!(e.is_transient());
        drop(only);
        until("room", async || {
            connect(&format!("redis://{}?quarantine=off", server.addr())).await.is_ok()
        })
        .await;
    });
}

fn loading() {
    run(async {
        // Loading takes a millisecond a key, and the server answers while it loads.
        let server = Redis::new()
            .arg("key-load-delay", "1000")
            .arg("loading-process-events-interval-bytes", "1024")
            .start()
            .await
            .unwrap();
        let fill = "for i = 1, 1500 do redis.call('SET', 'k' .. i, string.rep('x', 100)) end";
        said(&server, &["EVAL", fill, "0"]).await;
        assert_eq!(said(&server, &["SAVE"]).await, "OK");
        server.kill();
        let url = format!("redis://{}?quarantine=off", server.addr());
        let again = server.again();
        let asking = async {
            let mut words = Vec::new();
            loop {
                let asked = async {
                    let locks = connect(&url).await?;
                    locks.lock("a").try_acquire().await.map(|answer| (locks, answer.unwrap()))
                };
                match asked.await {
                    Ok((locks, guard)) => return (locks, guard, words),
                    Err(e) => {
                        assert!(e.is_transient() && e.hint().is_some(), "{e:?}");
                        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
                        words.push(e.to_string());
                    }
                }
            }
        };
        let both = async { tokio::join!(again, asking) };
        let (up, (locks, guard, words)) = soon("it is up", both).await;
        up.unwrap();
        give_back(guard).await;
        assert!(words.iter().any(|w| w.contains("loading")), "{:?}", words.last());
        give_back(take(&locks, "a").await).await;
    });
}

fn foreign_types() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        for (query, key) in [("quarantine=off", "dl:{:a}"), ("quarantine=off&algorithm=plain", "a")]
        {
            let locks = client(&server, query).await;
            said(&server, &["DEL", key]).await;
            said(&server, &["RPUSH", key, "theirs"]).await;
            let lock = || locks.lock("a").ttl(ms(1000));
            let e = soon("an answer", lock().try_acquire()).await.unwrap_err();
            assert_eq!(e.kind(), Kind::Layout, "{e:?}");
            assert!(e.hint().is_some() && e.to_string().contains('a'), "{e:?}");
            let e = soon("an answer", lock().acquire()).await.unwrap_err();
            assert_eq!(e.kind(), Kind::Layout, "{e:?}");
            assert_eq!(said(&server, &["LRANGE", key, "0", "-1"]).await, "[theirs]");
            said(&server, &["DEL", key]).await;
            give_back(take(&locks, "a").await).await;
        }
    });
}

fn foreign_layout() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let locks = client(&server, "quarantine=off").await;
        let newer = b"\x02 a layout of the future, long enough to look like one of ours, which it is not at all........................................";
        for value in [&b"theirs"[..], b"", newer] {
            let set = [&b"SET"[..], b"dl:{:a}", value];
            raw(server.addr(), &set).await.unwrap().ok().unwrap();
            let e = soon("an answer", locks.lock("a").try_acquire()).await.unwrap_err();
            assert_eq!(e.kind(), Kind::Layout, "{value:?} {e:?}");
            assert!(e.hint().is_some(), "{e:?}");
            let kept = raw(server.addr(), &["GET", "dl:{:a}"]).await.unwrap();
            assert_eq!(kept.to_string().as_bytes(), value);
        }
        // The undo of those requests must not have been at work on it either.
        said(&server, &["DEL", "dl:{:a}"]).await;
        give_back(take(&locks, "a").await).await;
        all_free(&locks, "a").await;
    });
}

fn urls() {
    run(async {
        let server = Redis::new().start().await.unwrap();
        let addr = server.addr();
        for url in [
            format!("redis://{addr}/notadb"),
            format!("redis://{addr}/0/1"),
            format!("redis://{addr},{addr}"),
            format!("redis://{addr}?ttl=1s"),
            format!("redis://{addr}?max_ttl=0"),
            format!("redis://{addr}?timeout=-1s"),
            format!("redis://{addr}?algorithm=redlock"),
            format!("redis://{addr}?quarantine=maybe"),
            "redis://".to_owned(),
            "redis+unix://host/x".to_owned(),
        ] {
            let e = refused(&url).await;
            assert_eq!(e.kind(), Kind::Usage, "{url} {e:?}");
        }
        // A database that the server does not have.
        let e = refused(&format!("redis://{addr}/99")).await;
        assert!(e.hint().unwrap().contains("database"), "{e:?}");
        // Not of a cluster.
        let e = refused(&format!("redis+cluster://{addr}")).await;
        assert_eq!(e.kind(), Kind::Usage, "{e:?}");
        untouched(&server).await;
    });
}
