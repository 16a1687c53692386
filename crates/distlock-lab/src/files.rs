//! Where a record and its page are kept.

use std::fs;
use std::path::{Path, PathBuf};

use distlock::{Error, Kind};
use distlock_lab::record::Record;
use distlock_lab::report;

use crate::args::Args;

fn trouble(what: &str, path: &Path) -> Error {
    Error::new(Kind::Store, format!("{} {what}", path.display()))
}

/// A record from its file.
pub(crate) fn read(path: &Path) -> Result<Record, Error> {
    let text = fs::read(path).map_err(|e| trouble("cannot be read", path).because(e))?;
    serde_json::from_slice(&text).map_err(|e| {
        trouble("is no record of this lab", path)
            .because(e)
            .with_hint("name another file, or remove it to begin anew")
    })
}

/// Writes record and page where they are wanted, with what was there before: all of it, and where
/// the page is.
pub(crate) fn write(
    args: &Args,
    seed: u64,
    earlier: Option<Record>,
    record: Record,
) -> Result<(Record, Option<PathBuf>), Error> {
    let all = match earlier {
        Some(earlier) => report::merge(earlier, record),
        None => record,
    };
    if let Some(path) = args.record_path(seed) {
        let text =
            serde_json::to_vec(&all).map_err(|e| trouble("cannot be written", &path).because(e))?;
        put(&path, &text)?;
    }
    let page = args.page_path(seed);
    if let Some(path) = &page {
        put(path, report::page(&all).as_bytes())?;
    }
    Ok((all, page))
}

/// Whole or not at all: a call that is ended meanwhile leaves the file that was there.
fn put(path: &Path, text: &[u8]) -> Result<(), Error> {
    let written = || {
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            fs::create_dir_all(dir)?;
        }
        let beside = path.with_extension("new");
        fs::write(&beside, text)?;
        fs::rename(&beside, path)
    };
    written().map_err(|e| trouble("cannot be written", path).because(e))
}
