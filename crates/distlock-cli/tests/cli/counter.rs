//! Many processes, one plain file, one lock.

use crate::scene::{Running, Scene};

const PROCESSES: usize = 16;
const TIMES: usize = 50;

/// Each adds one to the file fifty times, under the lock and in no other way protected, and keeps
/// count of its own in a file of its own.
fn count(scene: &Scene) {
    std::fs::write(scene.path("counter"), "0").unwrap();
    let line = "n=0; while [ $n -lt 50 ]; do \
                distlock run -q --ttl 30s counter -- sh -c \
                'read c < counter; echo $((c + 1)) > counter; echo $0 >> order' $0 \
                || exit 1; n=$((n + 1)); done";
    let mut all: Vec<Running> = (0..PROCESSES)
        .map(|i| {
            let mut command = scene.shell(line);
            command.arg(i.to_string());
            Running::from(command.spawn().unwrap())
        })
        .collect();
    for process in &mut all {
        assert_eq!(process.code(), 0);
    }
    assert_eq!(scene.read("counter").trim(), (PROCESSES * TIMES).to_string());
    fair(&scene.read("order"));
}

/// While all are at work nobody gets less than half of the mean.
fn fair(order: &str) {
    let order: Vec<usize> = order.lines().map(|l| l.parse().unwrap()).collect();
    assert_eq!(order.len(), PROCESSES * TIMES);
    let mut done = [0; PROCESSES];
    for who in order {
        done[who] += 1;
        if done[who] == TIMES {
            break;
        }
    }
    let mean = done.iter().sum::<usize>() / PROCESSES;
    let least = *done.iter().min().unwrap();
    assert!(least * 2 >= mean, "least {least}, mean {mean}: {done:?}");
}

#[test]
fn sixteen_processes_add_up_on_sqlite() {
    count(&Scene::sqlite());
}

#[test]
fn sixteen_processes_add_up_on_file() {
    count(&Scene::file());
}
