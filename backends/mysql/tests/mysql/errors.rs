//! Servers one cannot work with: each is a clear error that says what to do, soon.

use distlock_core::{Error, Kind, Outcome};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Certs, Imposter, Mariadb, Port, Server};
use sqlx::Connection;

use crate::kit::{LONG, Named, ask, connect, give_back, ms, run, soon, start, take, url};

pub(crate) const TRIALS: &[Named] = &[
    ("wrong_passwords_and_databases_are_told_apart", logins),
    ("a_user_who_may_not_create_is_told_how_to_get_the_tables", no_rights),
    ("a_server_that_is_read_only_is_refused", read_only),
    ("a_demoted_primary_is_left_for_a_new_connection", demoted),
    ("a_server_that_takes_no_writes_is_left_whatever_its_error_is", writes_refused),
    ("what_a_demoted_primary_says_is_not_believed", not_believed),
    ("tls_is_spoken_checked_and_refused", tls),
    ("no_server_and_no_mysql_are_told_apart_and_soon", imposters),
    ("as_many_connections_as_it_takes_is_unreachable", too_many),
    ("tables_of_a_newer_layout_are_refused_and_left_alone", newer),
    ("two_prefixes_are_two_stores", prefixes),
];

/// Connects in vain: soon, with a hint, and without the password in any text.
async fn refused(url: &str) -> Error {
    let answer = soon("an answer", connect(url)).await;
    let e = answer.err().unwrap_or_else(|| panic!("{url} was taken"));
    assert!(e.hint().is_some_and(|h| !h.is_empty()), "{e:?}");
    assert!(!format!("{e:?}").contains("s3cret"), "{e:?}");
    assert_eq!(e.outcome(), Outcome::NotApplied, "{e:?}");
    e
}

fn at(server: &Server, login: &str, rest: &str) -> String {
    format!("mysql://{login}@{}/{rest}", server.addr())
}

fn logins() {
    run(async {
        let server = start(Mariadb::new().user("app", "s3cret", "ALL")).await;
        for login in ["app:s3cret2", "app", "nobody:s3cret"] {
            let e = refused(&at(&server, login, "test")).await;
            assert_eq!(e.kind(), Kind::Credentials, "{login} {e:?}");
        }
        let e = refused(&at(&server, "app:s3cret", "nowhere")).await;
        assert_eq!(e.kind(), Kind::Usage, "{e:?}");
        let locks = connect(&at(&server, "app:s3cret", "test")).await.unwrap();
        assert!(!locks.site().contains("s3cret"), "{}", locks.site());
        give_back(take(&locks, "a", LONG).await).await;
        let socket = Mariadb::socket(&server).display().to_string();
        let by_socket =
            connect(&format!("mysql://app:s3cret@/test?socket={socket}")).await.unwrap();
        give_back(take(&by_socket, "a", LONG).await).await;
    });
}

fn no_rights() {
    run(async {
        let rights = "SELECT, INSERT, UPDATE, DELETE";
        let server = start(Mariadb::new().user("app", "s3cret", rights)).await;
        let e = refused(&at(&server, "app:s3cret", "test")).await;
        assert_eq!(e.kind(), Kind::Credentials, "{e:?}");
        assert!(e.hint().unwrap().contains("distlock schema"), "{e:?}");
        // Somebody else makes them: then those rights are enough, the doorbell included.
        ask(&server, &distlock_mysql::schema("distlock_").unwrap());
        let url = at(&server, "app:s3cret", "test");
        let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
        let held = take(&one, "a", LONG).await;
        let lock = other.lock("a").ttl(LONG);
        let waiting = crate::kit::task(async move { lock.acquire().await });
        crate::kit::line_of(&one, "a", 1).await;
        give_back(held).await;
        give_back(soon("its turn", waiting).await.unwrap().unwrap()).await;
    });
}

fn read_only() {
    run(async {
        let server = start(Mariadb::new().user("app", "s3cret", "ALL")).await;
        drop(connect(&at(&server, "app:s3cret", "test")).await.unwrap());
        ask(&server, "REVOKE SUPER, READ ONLY ADMIN ON *.* FROM 'app'@'%'");
        ask(&server, "SET GLOBAL read_only = 1");
        let locks = connect(&at(&server, "app:s3cret", "test")).await.unwrap();
        let e = soon("an answer", locks.lock("a").try_acquire()).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Refused, "{e:?}");
        assert!(e.hint().unwrap().contains("primary"), "{e:?}");
    });
}

/// Behind an address that leads to whoever is primary, a new connection is what it takes to get there.
fn demoted() {
    run(async {
        let server = start(Mariadb::new().user("app", "s3cret", "ALL")).await;
        ask(&server, "REVOKE SUPER, READ ONLY ADMIN ON *.* FROM 'app'@'%'");
        for query in ["algorithm=line", "algorithm=version", "algorithm=row-lock"] {
            let proxy = Proxy::to(server.addr()).await.unwrap();
            let url = format!("mysql://app:s3cret@{}/test?{query}", proxy.addr());
            let locks = connect(&url).await.unwrap();
            give_back(take(&locks, "a", LONG).await).await;
            ask(&server, "SET GLOBAL read_only = 1");
            let before = proxy.accepted();
            let e = soon("an answer", locks.lock("a").try_acquire()).await.unwrap_err();
            assert_eq!((e.kind(), e.is_transient()), (Kind::Refused, true), "{query} {e:?}");
            assert!(proxy.accepted() > before, "{query}: it stays where it is");
            ask(&server, "SET GLOBAL read_only = 0");
            give_back(take(&locks, "a", LONG).await).await;
        }
    });
}

/// A read-only transaction, InnoDB in read-only mode, and a group that a member cannot write in: a
/// trigger answers as such a server would.
fn writes_refused() {
    run(async {
        let server = start(Mariadb::new()).await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let locks = connect(&url(proxy.addr(), "")).await.unwrap();
        give_back(take(&locks, "a", LONG).await).await;
        for code in [1792, 1836, 3100] {
            let signal = format!(
                "CREATE TRIGGER test.refuses BEFORE UPDATE ON test.distlock_lock FOR EACH ROW \
                 SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'no writes'"
            );
            ask(&server, &signal);
            let before = proxy.accepted();
            let e = soon("an answer", locks.lock("a").try_acquire()).await.unwrap_err();
            assert_eq!((e.kind(), e.is_transient()), (Kind::Refused, true), "{code} {e:?}");
            ask(&server, "DROP TRIGGER test.refuses");
            give_back(take(&locks, "a", LONG).await).await;
            assert!(proxy.accepted() > before, "{code}: it stays where it is");
        }
    });
}

/// Root may write at a server that was demoted, and would lock there beside the users of the new
/// primary: what it holds ends, and it is granted nothing.
fn not_believed() {
    run(async {
        let server = start(Mariadb::new()).await;
        for query in ["algorithm=line", "algorithm=version", "algorithm=row-lock"] {
            let locks = connect(&url(server.addr(), query)).await.unwrap();
            let held = take(&locks, "a", ms(1500)).await;
            ask(&server, "SET GLOBAL read_only = 1");
            soon("it is lost", held.lost()).await;
            for name in ["a", "b"] {
                let e = soon("an answer", locks.lock(name).try_acquire()).await.unwrap_err();
                assert_eq!(e.kind(), Kind::Refused, "{query} {name} {e:?}");
            }
            ask(&server, "SET GLOBAL read_only = 0");
        }
    });
}

fn tls() {
    run(async {
        let (certs, strange) = (Certs::new().unwrap(), Certs::new().unwrap());
        let plain = start(Mariadb::new()).await;
        let e = refused(&url(plain.addr(), "ssl-mode=required")).await;
        assert!(matches!(e.kind(), Kind::Refused), "{e:?}");
        let server = start(Mariadb::new().tls(&certs)).await;
        let ca = |c: &Certs| c.ca().display().to_string();
        let right = format!("ssl-mode=verify_identity&ssl-ca={}", ca(&certs));
        let locks = connect(&url(server.addr(), &right)).await.unwrap();
        give_back(take(&locks, "a", LONG).await).await;
        let wrong = format!("ssl-mode=verify_ca&ssl-ca={}", ca(&strange));
        let e = refused(&url(server.addr(), &wrong)).await;
        assert_eq!(e.kind(), Kind::Refused, "{e:?}");
    });
}

fn imposters() {
    run(async {
        let port = Port::claim().unwrap();
        let e = refused(&url(port.addr(), "timeout=1s")).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        let silent = Imposter::silent().await.unwrap();
        let e = refused(&url(silent.addr(), "timeout=1s")).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        let garbage = Imposter::garbage().await.unwrap();
        let e = refused(&url(garbage.addr(), "timeout=1s")).await;
        assert!(matches!(e.kind(), Kind::Store | Kind::Unreachable), "{e:?}");
    });
}

fn too_many() {
    run(async {
        let how = Mariadb::new().user("app", "s3cret", "ALL");
        let server = start(how).await;
        ask(&server, "GRANT USAGE ON *.* TO 'app'@'%' WITH MAX_USER_CONNECTIONS 1");
        let only = at(&server, "app:s3cret", "test");
        let only = sqlx::MySqlConnection::connect(&only).await.unwrap();
        let e = refused(&at(&server, "app:s3cret", "test?timeout=1s")).await;
        assert_eq!(e.kind(), Kind::Unreachable, "{e:?}");
        assert!(e.is_transient());
        only.close().await.unwrap();
    });
}

fn newer() {
    run(async {
        let server = start(Mariadb::new()).await;
        let here = url(server.addr(), "");
        drop(connect(&here).await.unwrap());
        ask(&server, "UPDATE distlock_meta SET layout = 2");
        let e = refused(&here).await;
        assert_eq!(e.kind(), Kind::Layout, "{e:?}");
        assert_eq!(ask(&server, "SELECT layout FROM distlock_meta"), "2");
    });
}

fn prefixes() {
    run(async {
        let server = start(Mariadb::new()).await;
        let one = connect(&url(server.addr(), "prefix=one_")).await.unwrap();
        let other = connect(&url(server.addr(), "prefix=other_")).await.unwrap();
        let (a, b) = (take(&one, "a", LONG).await, take(&other, "a", LONG).await);
        assert!(ask(&server, "SHOW TABLES").contains("one_lock"));
        give_back(a).await;
        give_back(b).await;
    });
}
