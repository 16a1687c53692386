//! A redis that cannot be used, or not yet, as the command tells it.

use std::net::SocketAddr;
use std::time::Duration;

use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{Imposter, Redis, Server};

use crate::scene::{Done, Scene, timed, until};

/// A server, and the runtime that what is none runs on.
struct Host(tokio::runtime::Runtime);

impl Host {
    fn new() -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        Self(runtime.worker_threads(1).enable_all().build().unwrap())
    }

    fn start(&self, redis: Redis) -> Server {
        self.0.block_on(redis.start()).expect("`cargo xtask setup` installs redis")
    }
}

/// Runs a command under a lock; it must not run.
fn refused(url: &str, code: i32, hint: &str) {
    let scene = Scene::memory();
    for args in [
        &["run", "--url", url, "lock", "--", "touch", "ran"][..],
        &["run", "-n", "--url", url, "lock", "--", "touch", "ran"],
        &["check", "--url", url],
    ] {
        let (took, done) = timed(|| scene.run(args));
        assert_eq!(done.code, code, "{args:?} {done:?}");
        assert!(took < Duration::from_secs(10), "{took:?} {done:?}");
        assert!(done.err.starts_with("distlock: ") && done.out.is_empty(), "{done:?}");
        assert!(done.err.contains("\nhint: ") && done.err.contains(hint), "{hint}: {}", done.err);
        assert!(!done.err.contains("secret"), "{}", done.err);
    }
    assert!(!scene.path("ran").exists());
}

#[test]
fn a_redis_that_cannot_be_used_has_its_exit_status_and_a_hint() {
    let host = Host::new();
    let locked = host.start(Redis::new().password("right"));
    refused(&format!("redis://:secret@{}", locked.addr()), 77, "redis://:password@host");
    let lossy = host.start(Redis::new().maxmemory(64 << 20, "allkeys-lru"));
    refused(&format!("redis://{}", lossy.addr()), 78, "maxmemory-policy noeviction");
    let garbage = host.0.block_on(Imposter::garbage()).unwrap();
    refused(&format!("redis://{}", garbage.addr()), 69, "redis");
    let nobody: SocketAddr = {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.local_addr().unwrap()
    };
    refused(&format!("redis://:secret@{nobody}"), 69, "runs");
    refused(&format!("redis://{nobody}?colour=red"), 64, "max_ttl");
    refused(&format!("rediss://{nobody}?ca=/no/such/file"), 64, "PEM");
}

#[test]
fn the_quarantine_is_announced_while_it_lasts() {
    let host = Host::new();
    let server = host.start(Redis::new());
    let url = format!("redis://{}?max_ttl=8s", server.addr());
    let scene = Scene::memory();
    let told = |done: &Done| done.err.contains("started") && done.err.contains("granting in");
    let hasty = scene.run(&["run", "-n", "--ttl", "2s", "--url", &url, "lock", "--", "true"]);
    assert!(hasty.code == 69 && told(&hasty), "{hasty:?}");
    let patient = scene.run(&["run", "--ttl", "2s", "--url", &url, "lock", "--", "touch", "ran"]);
    assert!(patient.code == 0 && told(&patient) && scene.path("ran").exists(), "{patient:?}");
    let later = scene.run(&["run", "--ttl", "2s", "--url", &url, "lock", "--", "true"]);
    assert!(later.code == 0 && !told(&later), "{later:?}");
    // A check takes a lock as well, of a length that this store grants, and says why it waits.
    let checked = scene.run(&["check", "--url", &url]);
    assert!(checked.code == 0 && checked.out.contains("works"), "{checked:?}");
    let server = host.start(Redis::new());
    let checked = scene.run(&["check", "--url", &format!("redis://{}?max_ttl=8s", server.addr())]);
    assert!(checked.code == 0 && told(&checked), "{checked:?}");
}

#[test]
fn a_quarantine_is_not_busy_and_is_never_skipped_quietly() {
    let host = Host::new();
    let server = host.start(Redis::new());
    let scene = Scene::memory();
    let run = |options: &str, args: &[&str]| {
        let url = format!("redis://{}?{options}", server.addr());
        let mut all = vec!["--url", &url];
        all.extend(args);
        scene.run(&all)
    };
    let first = run("quarantine=off", &["run", "lock", "--", "true"]);
    assert_eq!(first.code, 0, "{first:?}");
    server.kill();
    host.0.block_on(server.again()).unwrap();
    for code in ["0", "75", "5"] {
        let ran = ["run", "-n", "-E", code, "lock", "--", "touch", "ran"];
        let refused = run("max_ttl=60s", &ran);
        assert_eq!(refused.code, 69, "-E {code} {refused:?}");
        assert!(refused.err.contains("granting in"), "{refused:?}");
        assert!(refused.err.contains("hint: nobody holds it"), "{refused:?}");
        assert!(!scene.path("ran").exists());
    }
    let quiet = run("max_ttl=60s", &["-q", "run", "-n", "-E", "0", "lock", "--", "true"]);
    assert!(quiet.code == 69 && quiet.err.contains("granting in"), "{quiet:?}");
    let short = run("max_ttl=60s", &["run", "-w", "100ms", "-E", "0", "lock", "--", "true"]);
    assert!(short.code == 69 && short.err.contains("gave up after"), "{short:?}");
    let ticket = run("max_ttl=60s", &["acquire", "-n", "--ttl", "2s", "lock"]);
    assert!(ticket.code == 69 && ticket.out.is_empty(), "{ticket:?}");
}

#[test]
fn acquire_takes_the_longest_that_the_store_grants_and_says_so() {
    let host = Host::new();
    let server = host.start(Redis::new());
    let scene = Scene::memory();
    let url = format!("redis://{}?quarantine=off&max_ttl=45s", server.addr());
    let done = scene.run(&["acquire", "--json", "--url", &url, "lock"]);
    let doc: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert!(done.code == 0 && doc["ttl_seconds"] == 45.0, "{done:?}");
    assert!(done.err.contains("held for 45s"), "{done:?}");
    // What was asked for is not changed, and what is enough is not talked about.
    let long = scene.run(&["acquire", "--ttl", "10m", "--url", &url, "other"]);
    assert!(long.code == 64 && long.err.contains("max_ttl"), "{long:?}");
    let server = host.start(Redis::new());
    let url = format!("redis://{}?quarantine=off&max_ttl=1h", server.addr());
    let done = scene.run(&["acquire", "--json", "--url", &url, "lock"]);
    let doc: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert!(doc["ttl_seconds"] == 600.0 && done.err.is_empty(), "{done:?}");
}

#[test]
fn a_store_that_falls_silent_is_told_to_who_waits() {
    let host = Host::new();
    let server = host.start(Redis::new());
    let proxy = host.0.block_on(Proxy::to(server.addr())).unwrap();
    let url = |addr| format!("redis://{addr}?quarantine=off&max_ttl=1h&timeout=500ms");
    let (near, far) = (url(server.addr()), url(proxy.addr()));
    let scene = Scene::memory();
    let mut holder = scene.hold(&["--ttl", "60s", "--url", &near], "exec sleep 1000");
    let args = ["run", "--ttl", "60s", "--url", &far, "lock", "--", "touch", "ran"];
    let mut waiter = scene.start("waiter.log", &args);
    scene.says("waiter.log", "held by");
    let told = |what: &str| scene.read("waiter.log").matches(what).count();
    proxy.cut_both();
    scene.says("waiter.log", "does not answer");
    assert_eq!((told("held by"), told("does not answer")), (1, 1));
    proxy.heal();
    until("it says that it waits again", || told("held by") == 2);
    scene.says("waiter.log", "next in line");
    assert_eq!(told("does not answer"), 1, "{}", scene.read("waiter.log"));
    rustix::process::kill_process(scene.pid("pid"), rustix::process::Signal::TERM).unwrap();
    holder.code();
    assert_eq!(waiter.code(), 0, "{}", scene.read("waiter.log"));
    assert!(scene.path("ran").exists());
}

#[test]
fn a_wait_ends_in_time_also_at_a_server_that_stands_still() {
    let host = Host::new();
    let server = host.start(Redis::new());
    let url = format!("redis://{}?quarantine=off&max_ttl=1h", server.addr());
    let scene = Scene::memory();
    let _holder = scene.hold(&["--ttl", "60s", "--url", &url], "exec sleep 1000");
    let args = ["run", "-w", "4s", "-E", "0", "--url", &url, "lock", "--", "touch", "ran"];
    let mut waiter = scene.start("waiter.log", &args);
    scene.says("waiter.log", "held by");
    server.pause();
    // One that comes now, and one that has waited in line.
    let (took, late) =
        timed(|| scene.run(&["run", "-w", "1s", "-E", "0", "--url", &url, "lock", "--", "true"]));
    assert!(late.code == 69 && late.err.contains("hint: "), "{late:?}");
    assert!(took < Duration::from_millis(2500), "{took:?}");
    let (took, code) = timed(|| waiter.code());
    assert!(took < Duration::from_secs(6), "{took:?}");
    // It knows of a holder, and of a server that does not answer: either is said.
    assert!([0, 69].contains(&code), "{code}: {}", scene.read("waiter.log"));
    assert!(!scene.path("ran").exists());
    server.resume();
}

#[test]
fn who_does_not_wait_for_a_quorum_is_not_told_that_it_waits() {
    let host = Host::new();
    let servers: Vec<Server> = (0..3).map(|_| host.start(Redis::new())).collect();
    let hosts: Vec<String> = servers.iter().map(|s| s.addr().to_string()).collect();
    // A node that is slow to answer is none that answers, and this is not about that.
    let url = format!("redlock://{}?node_timeout=5s", hosts.join(","));
    let scene = Scene::memory();
    let hasty = scene.run(&["run", "-n", "--url", &url, "lock", "--", "true"]);
    assert!(hasty.code == 69 && hasty.err.contains("granting in"), "{hasty:?}");
    assert!(!hasty.err.contains("waiting"), "{hasty:?}");
    let skipped = scene.run(&["run", "-n", "-E", "0", "--url", &url, "lock", "--", "true"]);
    assert!(skipped.code == 69 && skipped.err.contains("granting in"), "{skipped:?}");
}

#[test]
fn a_check_names_the_nodes_that_refuse_us() {
    let host = Host::new();
    let good = [host.start(Redis::new()), host.start(Redis::new())];
    let locked = host.start(Redis::new().password("right"));
    let (a, b, c) = (good[0].addr(), good[1].addr(), locked.addr());
    let nodes = format!("node=redis://{a}&node=redis://{b}&node=redis://:secret@{c}");
    let url = format!("redlock:?quarantine=off&node_timeout=1s&{nodes}");
    let scene = Scene::memory();
    // Two are enough: who is later than they is not waited for long.
    until("the third has answered in time", || {
        let done = scene.run(&["check", "--url", &url]);
        assert!(done.code == 0 && done.out.contains("works"), "{done:?}");
        assert!(!done.err.contains("secret"), "{done:?}");
        done.err.contains(&c.to_string()) && done.err.contains("WRONGPASS")
    });
}
