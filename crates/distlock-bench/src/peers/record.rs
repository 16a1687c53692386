//! What one run measured at one store: the file that page and plot are made from.

use std::fs;

use distlock::Error;
use serde::{Deserialize, Serialize};

use super::contender::{Contender, Language};
use super::fail;
use super::protocol::Histogram;
use super::scene::Scene;

/// Where it was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) processor: String,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let (memory, cpu) = (read("/proc/meminfo"), read("/proc/cpuinfo"));
        let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = kib.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
        let model = cpu.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown");
        let kernel = read("/proc/sys/kernel/osrelease");
        // What follows the number names a build, not a version.
        let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: kib.unwrap_or(0).div_ceil(1024 * 1024),
            processor: model.to_owned(),
            kernel,
        }
    }
}

/// How long each contender was measured in each scene.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Lengths {
    /// Times that each contender had its turn.
    pub(crate) turns: u32,
    pub(crate) warm_ms: u64,
    pub(crate) run_ms: u64,
}

/// One contender in one scene.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) scene: Scene,
    pub(crate) peer: String,
    pub(crate) language: Language,
    /// Ours alone: whether tasks of a process hand a lock over without the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hand_over: Option<bool>,
    pub(crate) cycles: u64,
    pub(crate) seconds: f64,
    /// From the request to the grant, in microseconds.
    pub(crate) wait_p50: f64,
    pub(crate) wait_p99: f64,
    /// From the request to the end of the release, in microseconds.
    pub(crate) cycle_p50: f64,
    pub(crate) cycle_p99: f64,
    /// Grants of the task that had the fewest, and of the one that had the most.
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// The smallest part of all grants that a process had.
    pub(crate) smallest_share: f64,
    /// Processor time of the server and of all clients for one cycle, in microseconds.
    pub(crate) server_cpu: f64,
    pub(crate) client_cpu: f64,
    /// Peak memory of all client processes together, in MiB.
    pub(crate) memory: f64,
}

impl Row {
    pub(crate) fn rate(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)]
        let cycles = self.cycles as f64;
        cycles / self.seconds.max(1e-9)
    }

    pub(crate) fn is(&self, contender: &Contender) -> bool {
        self.peer == contender.peer && self.hand_over == contender.hand_over
    }
}

/// Why a contender has no row.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Absence {
    pub(crate) peer: String,
    /// One scene; all when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scene: Option<Scene>,
    pub(crate) why: String,
}

/// One store.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) store: String,
    /// The server's version.
    pub(crate) server: String,
    pub(crate) machine: Machine,
    pub(crate) lengths: Lengths,
    /// The libraries and their versions, as each program said.
    pub(crate) versions: Vec<(String, String)>,
    pub(crate) absent: Vec<Absence>,
    pub(crate) rows: Vec<Row>,
}

impl Record {
    /// The row of a contender in a scene.
    pub(crate) fn row(&self, scene: Scene, contender: &Contender) -> Option<&Row> {
        self.rows.iter().find(|row| row.scene == scene && row.is(contender))
    }

    #[cfg(test)]
    pub(crate) fn read(file: &std::path::Path) -> Result<Self, Error> {
        let text = fs::read(file).map_err(|e| fail("cannot read a record", e))?;
        serde_json::from_slice(&text).map_err(|e| fail("cannot read a record", e))
    }

    /// As JSON, a line for each row, so that two runs are easily compared.
    pub(crate) fn text(&self) -> Result<String, Error> {
        let broken = |e| fail("cannot write a record", e);
        let empty = Self { rows: Vec::new(), ..self.clone() };
        let head = serde_json::to_string_pretty(&empty).map_err(broken)?;
        let rows: Result<Vec<String>, _> = self.rows.iter().map(serde_json::to_string).collect();
        let rows = rows.map_err(broken)?.join(",\n    ");
        Ok(head.replace("\"rows\": []", &format!("\"rows\": [\n    {rows}\n  ]")) + "\n")
    }
}

/// What the turns of one contender in one scene add up to.
#[derive(Default)]
pub(crate) struct Tally {
    /// Of each process, of each of its tasks.
    pub(crate) grants: Vec<Vec<u64>>,
    pub(crate) seconds: f64,
    pub(crate) wait: Histogram,
    pub(crate) cycle: Histogram,
    pub(crate) server_cpu: f64,
    pub(crate) client_cpu: f64,
    pub(crate) memory: f64,
}

impl Tally {
    /// Adds another turn.
    pub(crate) fn add(&mut self, turn: &Self) {
        if self.grants.is_empty() {
            self.grants = turn.grants.iter().map(|tasks| vec![0; tasks.len()]).collect();
        }
        for (mine, theirs) in self.grants.iter_mut().flatten().zip(turn.grants.iter().flatten()) {
            *mine += theirs;
        }
        self.seconds += turn.seconds;
        self.wait.merge(&turn.wait);
        self.cycle.merge(&turn.cycle);
        self.server_cpu += turn.server_cpu;
        self.client_cpu += turn.client_cpu;
        self.memory = self.memory.max(turn.memory);
    }

    pub(crate) fn row(&self, scene: Scene, contender: &Contender) -> Row {
        let tasks = || self.grants.iter().flatten().copied();
        let cycles: u64 = tasks().sum();
        #[allow(clippy::cast_precision_loss)]
        let (all, smallest) = (
            cycles.max(1) as f64,
            self.grants.iter().map(|g| g.iter().sum::<u64>()).min().unwrap_or(0) as f64,
        );
        let round = |n: f64, digits: i32| (n * 10f64.powi(digits)).round() / 10f64.powi(digits);
        Row {
            scene,
            peer: contender.peer.to_owned(),
            language: contender.language,
            hand_over: contender.hand_over,
            cycles,
            seconds: round(self.seconds, 3),
            wait_p50: round(self.wait.quantile(0.5), 1),
            wait_p99: round(self.wait.quantile(0.99), 1),
            cycle_p50: round(self.cycle.quantile(0.5), 1),
            cycle_p99: round(self.cycle.quantile(0.99), 1),
            least: tasks().min().unwrap_or(0),
            most: tasks().max().unwrap_or(0),
            smallest_share: round(smallest / all, 3),
            server_cpu: round(self.server_cpu * 1e6 / all, 1),
            client_cpu: round(self.client_cpu * 1e6 / all, 1),
            memory: round(self.memory, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::contender::contenders;

    #[test]
    fn turns_add_up_and_a_record_is_read_as_it_was_written() {
        let turn = Tally {
            grants: vec![vec![10, 30], vec![5, 15]],
            seconds: 1.0,
            server_cpu: 0.003,
            client_cpu: 0.012,
            memory: 20.0,
            ..Tally::default()
        };
        let mut tally = Tally::default();
        tally.add(&turn);
        tally.add(&Tally { memory: 10.0, ..turn });
        let ours = contenders("redis")[1];
        let row = tally.row(Scene::Two, &ours);
        assert_eq!((row.cycles, row.least, row.most), (120, 10, 60));
        assert!((row.rate() - 60.0).abs() < 1e-9 && (row.smallest_share - 0.333).abs() < 1e-9);
        assert!((row.server_cpu - 50.0).abs() < 1e-9 && (row.client_cpu - 200.0).abs() < 1e-9);
        assert!((row.memory - 20.0).abs() < 1e-9);
        let record = Record {
            store: "redis".to_owned(),
            server: "redis 7".to_owned(),
            machine: Machine::here(),
            lengths: Lengths { turns: 2, warm_ms: 500, run_ms: 1000 },
            versions: vec![("redsync".to_owned(), "redsync 4".to_owned())],
            absent: vec![Absence { peer: "x".to_owned(), scene: None, why: "no x".to_owned() }],
            rows: vec![row.clone(), Row { hand_over: Some(true), ..row }],
        };
        let text = record.text().unwrap();
        assert_eq!(text.lines().filter(|line| line.contains("\"cycles\"")).count(), 2);
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
