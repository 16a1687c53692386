//! The buyer whose process is stopped: this program, started again.

use std::process::Stdio;
use std::time::Duration;

use distlock::Connect;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use crate::rush::Plan;
use crate::shop::{Shop, Trouble};
use crate::way::{Bought, Pause, Way, buy};

const WORD: &str = "sleeper";
const PAUSED: &str = "between look and purchase";
/// Short, so that nobody waits long for it; it need only last until the process stops itself.
const TTL: Duration = Duration::from_secs(3);

/// What the second process is told: database, locks and way.
pub(crate) fn told(args: &[String]) -> Option<[&str; 3]> {
    match args {
        [word, rest @ ..] if word == WORD => {
            let told: [&String; 3] = rest.iter().collect::<Vec<_>>().try_into().ok()?;
            Some(told.map(String::as_str))
        }
        _ => None,
    }
}

/// The second process: one purchase, with a stop in the middle.
pub(crate) async fn run([database, locks, way]: [&str; 3]) -> Result<(), Trouble> {
    let way = Way::named(way).ok_or("no such way")?;
    let locks = distlock::Locks::options().connect(locks).await?;
    let shop = Shop::open(database).await?;
    let bought = buy(way, &shop, &locks, TTL, Pause { stop: true }).await?;
    println!("{bought:?}");
    Ok(())
}

/// In the second process: says where it is and waits for a line.
pub(crate) async fn pause() -> Result<(), Trouble> {
    println!("{PAUSED}");
    BufReader::new(tokio::io::stdin()).read_line(&mut String::new()).await?;
    Ok(())
}

/// In the first: the stopped process.
pub(crate) struct Sleeper {
    child: Child,
    pid: Pid,
    said: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Sleeper {
    /// Starts it and stops it between its look and its purchase.
    pub(crate) async fn start(plan: &Plan<'_>) -> Result<Self, Trouble> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([WORD, plan.database, plan.locks, &plan.way.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or("it ended at once")?;
        let mut said = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        match said.next_line().await?.as_deref() {
            Some(PAUSED) => {}
            other => return Err(format!("the sleeper said {other:?}").into()),
        }
        kill_process(pid, Signal::STOP)?;
        Ok(Self { child, pid, said })
    }

    /// Wakes it up and waits for what it says of its purchase.
    pub(crate) async fn wake(mut self) -> Result<Bought, Trouble> {
        let mut stdin = self.child.stdin.take().ok_or("no pipe")?;
        stdin.write_all(b"go on\n").await?;
        kill_process(self.pid, Signal::CONT)?;
        let said = self.said.next_line().await?.unwrap_or_default();
        self.child.wait().await?;
        let all = [Bought::Yes, Bought::SoldOut, Bought::Stale, Bought::Conflict];
        let bought = all.into_iter().find(|b| format!("{b:?}") == said);
        Ok(bought.ok_or_else(|| format!("the sleeper said {said:?}"))?)
    }
}
