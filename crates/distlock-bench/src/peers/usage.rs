//! What processes used, as `/proc` tells it.

use std::collections::HashMap;
use std::fs;

/// The kernel counts processor time in hundredths of a second.
const TICKS: f64 = 100.0;

/// The fields of `/proc/PID/stat` that follow the command's name.
fn stat(pid: u32) -> Option<Vec<u64>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let fields = stat.rsplit(')').next()?.split_ascii_whitespace();
    Some(fields.map(|field| field.parse().unwrap_or(0)).collect())
}

/// Processor seconds of some processes and everything they started, ended children included.
pub(crate) fn processor(pids: &[u32]) -> f64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: HashMap<u32, Vec<u64>> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect();
    let below = |mut pid: u32| {
        loop {
            if pids.contains(&pid) {
                return true;
            }
            // State, parent, …
            let parent = all.get(&pid).and_then(|fields| fields.get(1)).copied().unwrap_or(0);
            match u32::try_from(parent) {
                Ok(parent) if parent != 0 => pid = parent,
                _ => return false,
            }
        }
    };
    // User and system time, then those of children that were waited for.
    let ticks = |fields: &Vec<u64>| fields.iter().skip(11).take(4).sum::<u64>();
    #[allow(clippy::cast_precision_loss)]
    let total =
        all.iter().filter(|(pid, _)| below(**pid)).map(|(_, f)| ticks(f)).sum::<u64>() as f64;
    total / TICKS
}

/// The most memory that a process had resident so far, in MiB.
pub(crate) fn peak_memory(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_processor_time_and_memory() {
        let me = std::process::id();
        assert!(peak_memory(me) > 1.0);
        let before = processor(&[me]);
        let mut sum = 0u64;
        while processor(&[me]) < before + 0.03 {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        assert!(sum > 0);
        assert!(processor(&[]) < f64::EPSILON);
    }
}
