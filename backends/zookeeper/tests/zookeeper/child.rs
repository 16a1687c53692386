//! The other process: what it does is said in its environment.

use std::path::Path;
use std::process::{Child as Process, Command, Stdio};

use distlock_core::Clock;
use distlock_testkit::history::Recorder;

use crate::kit::{connect, ms, run};

const ROLE: &str = "DISTLOCK_ZOOKEEPER_TEST_ROLE";

/// Starts a child that takes and gives back a lock until a file appears, and writes down how that
/// went.
pub(crate) fn start(url: &str, dir: &Path, number: usize) -> Process {
    Command::new(std::env::current_exe().unwrap())
        .env(ROLE, format!("{url} {} {number}", dir.display()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Plays the role of a child, if this is one.
pub(crate) fn role() -> bool {
    let Ok(role) = std::env::var(ROLE) else { return false };
    // An orphan must not outlive its test.
    distlock_core::engine::thread("parent", || {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(3);
    })
    .unwrap();
    let [url, dir, number] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    run(contend(url, Path::new(dir), number));
    true
}

async fn contend(url: &str, dir: &Path, number: &str) {
    let locks = connect(url).await.unwrap();
    let mut recorder = Recorder::create(&dir.join("history").join(number)).unwrap();
    let (mut grants, mut errors) = (0, 0);
    while !dir.join("stop").exists() {
        match recorder.acquire_lock(locks.lock("a").ttl(ms(6000)), "a").await {
            Ok(guard) => {
                Clock::system().sleep(ms(5)).await;
                grants += 1;
                errors += u32::from(recorder.release(guard).await.is_err());
            }
            Err(e) if e.is_transient() => {
                errors += 1;
                Clock::system().sleep(ms(50)).await;
            }
            Err(e) => panic!("{e:?}"),
        }
    }
    // Once more, after all trouble: everybody alive ends up served.
    let last = recorder.acquire_lock(locks.lock("a").ttl(ms(6000)), "a").await.unwrap();
    let _ = recorder.release(last).await.unwrap();
    recorder.end().unwrap();
    println!("process {number}: {grants} grants, {errors} errors");
}
