//! What can be asked of the lab.

use std::path::PathBuf;

use clap::Parser;

/// Failure stories and random faults on real servers, with a verdict.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask lab", bin_name = "cargo xtask lab")]
pub(crate) struct Args {
    /// Only this store (repeatable; a wrong one lists them)
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Vec<String>,
    /// Only this story (repeatable; a wrong one lists them); `random` for the random rounds
    #[arg(long, value_name = "STORY")]
    pub(crate) story: Vec<String>,
    /// How many rounds of random faults a store
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<u32>,
    /// The first of them, to go on where an earlier call with the same seed ended
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) from: u32,
    /// Where all plans come from; the same seed gives the same plans
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Each story on the stores it is about and one of each family, five random rounds a store
    #[arg(long)]
    pub(crate) quick: bool,
    /// How many stores side by side
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) abreast: usize,
    /// Write the record there; one that is there already and has the same seed is added to
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the page about the record there
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write record and page into this directory, under the seed, unless files are named
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Leave out what the record has already and that came as expected, to go on after a break
    #[arg(long, requires = "seed")]
    pub(crate) resume: bool,
    /// Run nothing: put these records together, earlier ones first
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["quick", "resume"])]
    pub(crate) merge: Vec<PathBuf>,
    /// List stories and stores, and do nothing
    #[arg(long)]
    pub(crate) list: bool,
}

impl Args {
    /// Where the record goes, if anywhere.
    pub(crate) fn record_path(&self, seed: u64) -> Option<PathBuf> {
        self.json.clone().or_else(|| Some(self.out.as_ref()?.join(format!("seed-{seed}.json"))))
    }

    /// Where the page goes, if anywhere.
    pub(crate) fn page_path(&self, seed: u64) -> Option<PathBuf> {
        self.html.clone().or_else(|| Some(self.out.as_ref()?.join(format!("seed-{seed}.html"))))
    }
}
