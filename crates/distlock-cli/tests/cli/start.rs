//! Between the grant and the start of the command.

use nix::sys::ptrace::{self, Event, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::Signal;

use crate::scene::{Scene, alive, until};

/// Runs a traced process until it makes another one, which has not run an instruction yet then.
/// Both stand still; answers the new one.
fn at_its_next_child(parent: Pid) -> Pid {
    loop {
        match waitpid(parent, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_VFORK as i32 => {
                let child = ptrace::getevent(parent).unwrap();
                return Pid::from_raw(child.try_into().unwrap());
            }
            WaitStatus::Stopped(_, signal) => ptrace::cont(parent, signal).unwrap(),
            WaitStatus::PtraceEvent(..) => ptrace::cont(parent, None).unwrap(),
            other => panic!("it started nothing: {other:?}"),
        }
    }
}

#[test]
fn a_distlock_stopped_before_the_start_does_not_start_its_command_after_the_lease() {
    let scene = Scene::sqlite();
    let mut first = scene.hold(&[], "until [ -e go ]; do sleep 0.02; done");
    let args = ["run", "--ttl", "3s", "lock", "--", "sh", "-c", "touch ran"];
    let mut late = scene.start("late.log", &args);
    // Its guardian runs by now, so that the next process it makes is the command.
    scene.waiting("lock", 1);
    let pid = Pid::from_raw(late.pid().as_raw_pid());
    ptrace::seize(pid, Options::PTRACE_O_TRACEVFORK).unwrap();
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!(first.code(), 0);
    let command = at_its_next_child(pid);
    // The tracer stopped the thread that starts the command; this stops the one that renews.
    late.signal(Signal::STOP);
    // When somebody else has been in, the lease is over.
    let next = scene.run(&["run", "lock", "--", "true"]);
    assert_eq!(next.code, 0, "{next:?}");
    let stopped = waitpid(command, Some(WaitPidFlag::__WALL)).unwrap();
    assert_eq!(stopped.pid(), Some(command), "{stopped:?}");
    // The new process goes on first: nobody is there who could end it.
    ptrace::detach(command, None).unwrap();
    let command = rustix::process::Pid::from_raw(command.as_raw()).unwrap();
    until("the new process ends", || !alive(command));
    assert!(!scene.path("ran").exists(), "started after the lease: {}", scene.read("late.log"));
    late.signal(Signal::CONT);
    ptrace::detach(pid, None).unwrap();
    assert_eq!(late.code(), 76, "{}", scene.read("late.log"));
    scene.says("late.log", "was lost before the command could be started");
}
