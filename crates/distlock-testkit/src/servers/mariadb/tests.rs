use std::time::Duration;

use distlock_core::Clock;

use super::super::{Certs, WallClock};
use super::*;

async fn start(how: Mariadb) -> Server {
    how.start().await.expect("`cargo xtask setup` installs MariaDB")
}

fn ask(server: &Server, statement: &str) -> String {
    Mariadb::ask(server, statement).unwrap()
}

#[tokio::test]
async fn a_real_mariadb_keeps_what_it_answered_when_killed_and_forgets_it_when_wiped() {
    let server = start(Mariadb::new().durable().user("app", "secret", "SELECT")).await;
    ask(&server, "CREATE TABLE t (n INT PRIMARY KEY); INSERT INTO t VALUES (7)");
    server.kill();
    assert!(Mariadb::ask(&server, "SELECT 1").is_err());
    server.again().await.unwrap();
    assert_eq!(ask(&server, "SELECT n FROM t"), "7");
    assert_eq!(ask(&server, "SELECT user FROM mysql.user WHERE user = 'app'"), "app");
    assert!(Mariadb::ask(&server, "NONSENSE").unwrap_err().to_string().contains("syntax"));
    server.wipe().await.unwrap();
    assert_eq!(ask(&server, "SHOW TABLES"), "");
}

#[tokio::test]
async fn a_mariadb_speaks_tls_and_goes_by_the_clock_it_is_given() {
    let (certs, clock) = (Certs::new().unwrap(), WallClock::new().unwrap());
    let server = start(Mariadb::new().tls(&certs).clock(&clock)).await;
    assert_eq!(ask(&server, "SELECT @@have_ssl"), "YES");
    clock.forward(Duration::from_secs(7200));
    let there: u64 = ask(&server, "SELECT UNIX_TIMESTAMP()").parse().unwrap();
    let here = Clock::system().wall_micros() / 1_000_000;
    assert!((7100..7300).contains(&there.saturating_sub(here)), "{there} {here}");
}

/// A server whose clock is stepped waits as long as it is told to. InnoDB aborts when 600 waits of a
/// second are over at once.
#[tokio::test]
async fn waits_are_as_long_as_before_when_the_clock_is_stepped() {
    let clock = WallClock::new().unwrap();
    let server = start(Mariadb::new().clock(&clock)).await;
    let took = || {
        let begun = Clock::system().now();
        ask(&server, "SELECT SLEEP(1)");
        Clock::system().now().since(begun)
    };
    clock.back(Duration::from_secs(30));
    assert!(took() >= Duration::from_secs(1));
    clock.forward(Duration::from_secs(60));
    assert!(took() < Duration::from_secs(25));
}
