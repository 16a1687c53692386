//! Which boot of which kernel, seen through which time namespace: what makes two readings of
//! `CLOCK_BOOTTIME` comparable.

use std::fs;

use distlock_core::{Error, Kind};

/// What the numbers of the lease clock count from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Boot {
    /// The kernel's id of this boot.
    pub(crate) id: String,
    /// How far this process's time namespace shifts `CLOCK_BOOTTIME`: seconds and nanoseconds.
    pub(crate) shift: String,
}

impl Boot {
    /// Reads it from the kernel.
    pub(crate) fn here(id: Option<String>) -> Result<Self, Error> {
        let id = match id {
            Some(id) => id,
            None => fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|e| {
                Error::new(Kind::Unsupported, "the kernel's boot id cannot be read")
                    .with_hint("sqlite: needs /proc to tell whether leases are of this boot")
                    .because(e)
            })?,
        };
        // A kernel without time namespaces has no such file, and nothing is shifted.
        let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Ok(Self { id: id.trim().to_owned(), shift: shift(&offsets) })
    }
}

/// The shift of the boot-time clock in the text of `/proc/self/timens_offsets`.
fn shift(offsets: &str) -> String {
    let line = offsets.lines().find_map(|l| l.trim().strip_prefix("boottime"));
    let numbers: Vec<&str> = line.unwrap_or("0 0").split_whitespace().collect();
    numbers.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shift_is_that_of_the_boottime_clock() {
        let text = "monotonic           7         0\nboottime     -86400         5\n";
        assert_eq!(shift(text), "-86400 5");
        assert_eq!(shift(""), "0 0");
        assert_eq!(Boot::here(None).unwrap().id.len(), 36);
        assert_eq!(Boot::here(Some("x".into())).unwrap().id, "x");
    }
}
