use std::time::Duration;

use distlock_core::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::wait::until;

async fn sql(server: &Server, statements: &str) -> String {
    Postgres::sql(server, statements).await.unwrap_or_else(|e| panic!("{statements}: {e:?}"))
}

/// How its port answers a start-up message.
async fn greeting(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.addr()).await.unwrap();
    stream.write_all(HELLO).await.unwrap();
    let mut got = vec![0; 300];
    let n = stream.read(&mut got).await.unwrap();
    String::from_utf8_lossy(&got[..n]).into_owned()
}

#[tokio::test]
async fn a_postgres_is_paused_killed_restarted_and_wiped() {
    let server = Postgres::new().durable().start().await.expect("`cargo xtask setup` installs it");
    assert_eq!(
        sql(&server, "CREATE TABLE t(n int); INSERT INTO t VALUES (1); SHOW fsync").await,
        "on"
    );
    server.kill();
    assert!(Postgres::sql(&server, "SELECT 1").await.is_err());
    server.again().await.unwrap();
    assert_eq!(sql(&server, "SELECT n FROM t").await, "1");
    server.restart().await.unwrap();
    assert_eq!(sql(&server, "SELECT n FROM t").await, "1");
    server.wipe().await.unwrap();
    assert_eq!(sql(&server, "SELECT to_regclass('t') IS NULL").await, "t");
}

#[tokio::test]
async fn a_pause_stops_the_processes_of_its_clients_too() {
    let server = Postgres::new().start().await.unwrap();
    let mut client = TcpStream::connect(server.addr()).await.unwrap();
    client.write_all(HELLO).await.unwrap();
    let mut got = [0; 4096];
    until("it is ready for a query", async || {
        let n = client.read(&mut got).await.unwrap();
        n >= 6 && got[n - 6] == b'Z'
    })
    .await;
    server.pause();
    let query = b"Q\0\0\0\x0dSELECT 1\0";
    client.write_all(query).await.unwrap();
    let answer = Clock::system().timeout(Duration::from_millis(300), client.read(&mut got)).await;
    assert!(answer.is_none(), "a paused server answered");
    server.resume();
    assert!(client.read(&mut got).await.unwrap() > 0);
}

#[tokio::test]
async fn a_password_is_asked_for_on_the_port_alone() {
    let server = Postgres::new().password("open sesame").start().await.unwrap();
    assert!(greeting(&server).await.contains("SCRAM-SHA-256"));
    assert_eq!(sql(&server, "SELECT 1").await, "1");
}

#[tokio::test]
async fn with_tls_nothing_else_is_spoken_on_the_port() {
    let certs = Certs::new().unwrap();
    let server = Postgres::new().tls(&certs).unwrap().start().await.unwrap();
    assert!(greeting(&server).await.contains("no pg_hba.conf entry"));
    let mut stream = TcpStream::connect(server.addr()).await.unwrap();
    stream.write_all(b"\0\0\0\x08\x04\xd2\x16\x2f").await.unwrap(); // asks for TLS
    assert_eq!(stream.read_u8().await.unwrap(), b'S');
}

#[tokio::test]
async fn it_goes_by_the_wall_clock_it_is_given() {
    let clock = WallClock::new().unwrap();
    let server = Postgres::new().clock(&clock).start().await.unwrap();
    let ahead = async || -> i64 {
        let there: f64 =
            sql(&server, "SELECT extract(epoch FROM clock_timestamp())").await.parse().unwrap();
        let here = Clock::system().wall_micros();
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
        let ahead = (there - here as f64 / 1e6) as i64;
        ahead
    };
    assert!(ahead().await.abs() < 300);
    clock.forward(Duration::from_secs(3600));
    assert!((ahead().await - 3600).abs() < 300);
}

#[tokio::test]
async fn a_standby_follows_and_takes_no_writes() {
    let primary = Postgres::new().start().await.unwrap();
    sql(&primary, "CREATE TABLE t(n int)").await;
    let standby = Postgres::new().standby_of(&primary).start().await.unwrap();
    sql(&primary, "INSERT INTO t VALUES (7)").await;
    until("the row is there", async || sql(&standby, "SELECT n FROM t").await == "7").await;
    let e = Postgres::sql(&standby, "INSERT INTO t VALUES (8)").await.unwrap_err();
    assert!(e.hint().is_some_and(|h| h.contains("read-only")), "{e:?}");
}
