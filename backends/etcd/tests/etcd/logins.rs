//! Logins: who needs one, how many are made, and what becomes of one that ends.

use std::io::Write;

use distlock_core::Clock;
use distlock_testkit::servers::{Server, etcd_calls, etcd_jwt};

use crate::errors::with_logins;
use crate::kit::{
    LONG, Named, connect, give_back, line_of, ms, run, server, soon, take, task, within,
};

pub(crate) const TRIALS: &[Named] = &[
    ("one_login_serves_all_calls_when_a_token_ends", one_login),
    ("a_watch_that_is_refused_for_an_old_token_is_asked_for_again", refused_watch),
];

/// Each login costs the member a hash of the password.
fn one_login() {
    run(async {
        let server = server().await;
        with_logins(&server).await;
        let locks = connect(&format!("etcd://app:hunter2@{}", server.addr())).await.unwrap();
        give_back(take(&locks, "a", LONG).await).await;
        // Its tokens are in its memory only, and its counters too. From here on each call finds out.
        server.restart().await.unwrap();
        let tasks: Vec<_> = (0..64)
            .map(|i| {
                let (locks, name) = (locks.clone(), i.to_string());
                task(async move { locks.show(&name).await.unwrap() })
            })
            .collect();
        for t in tasks {
            assert!(soon("an answer", t).await.unwrap().is_none());
        }
        let logins = etcd_calls(&server, "Authenticate").await.unwrap();
        eprintln!("{logins} logins for 64 calls");
        assert!((1.0..=3.0).contains(&logins), "{logins} logins");
    });
}

/// A stream keeps the token it was opened with. Its next look at the line is half a minute away.
fn refused_watch() {
    run(async {
        let mut secret = tempfile::NamedTempFile::new().unwrap();
        secret.write_all(b"0123456789abcdef0123456789abcdef").unwrap();
        let server = Server::start(etcd_jwt(secret.path(), 2).unwrap()).await.unwrap();
        with_logins(&server).await;
        let url = format!("etcd://app:hunter2@{}", server.addr());
        let (locks, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
        // The stream of watches is open from here on.
        let mine = take(&locks, "mine", LONG).await;
        let held = take(&other, "a", LONG).await;
        Clock::system().sleep(ms(2500)).await; // the tokens end: nothing that follows needs more
        let lock = locks.lock("a").ttl(LONG);
        let waiting = task(async move { lock.acquire().await });
        line_of(&other, "a", 1).await;
        give_back(held).await;
        let turn = within(ms(10_000), "its turn", waiting).await.unwrap().unwrap();
        give_back(turn).await;
        give_back(mine).await;
    });
}
