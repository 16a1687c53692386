//! What nodes are called.
//!
//! A lock is a container `<root>/<name>`, where `<name>` is percent-encoded and, in a namespace,
//! `<namespace>:<name>`. An entry is its child `_c_<uuid>-lock-<ten digits>`, as Apache Curator's
//! mutex calls its own, so that the two exclude each other on the same path. The uuid is the request
//! id. Curator knows only exclusive locks; what else there is stands between uuid and `lock`.

use std::num::NonZeroU32;

use distlock_core::{FullName, Mode, Name, Namespace, ReqId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Everything but letters, digits and what is harmless in a path and easy to read.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'@').remove(b'+').remove(b'=');

/// Where clients keep the nodes they write to, to show that they are there. No lock is called so:
/// a leading dot is encoded.
pub(crate) const CLIENTS: &str = ".clients";

/// The node of a lock, below the root.
pub(crate) fn encode(lock: &FullName) -> String {
    let name = utf8_percent_encode(lock.name.as_str(), ENCODED).to_string();
    let name = match name.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => name,
    };
    match lock.space.as_str() {
        "" => name,
        space => format!("{space}:{name}"),
    }
}

/// The lock of a node; `None` for one that is not ours, also when it would be called otherwise.
pub(crate) fn decode(node: &str) -> Option<FullName> {
    let (space, name) = node.split_once(':').unwrap_or(("", node));
    let name = percent_decode_str(name).decode_utf8().ok()?;
    let lock = FullName { space: Namespace::new(space).ok()?, name: Name::new(name).ok()? };
    (encode(&lock) == node).then_some(lock)
}

/// What an entry is called before the server adds its number.
pub(crate) fn prefix(req: &ReqId, mode: Mode) -> String {
    let mode = match mode {
        Mode::Exclusive => String::new(),
        Mode::Shared => "shared-".to_owned(),
        Mode::Permit(n) => format!("permit-{n}-"),
    };
    format!("{}{mode}lock-", guid(req))
}

/// How all entries of a request begin.
pub(crate) fn guid(req: &ReqId) -> String {
    let hex = req.to_string();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!("_c_{}-{}-{}-{}-{}-", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// The request of an entry; `None` for one of another kind of client.
pub(crate) fn request(name: &str) -> Option<ReqId> {
    name.strip_prefix("_c_")?.split_at_checked(36)?.0.replace('-', "").parse().ok()
}

/// An entry, as far as its name tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) sequence: i32,
    pub(crate) mode: Mode,
}

/// Reads a child's name. What has no number at its end stands in no line.
pub(crate) fn child(name: &str) -> Option<Child> {
    let (sequence, head) = sequence(name)?;
    Some(Child { name: name.to_owned(), sequence, mode: mode(head).unwrap_or(Mode::Exclusive) })
}

/// The number at the end, and what is before it. Past the largest number the server goes on with
/// the smallest, minus sign and all.
fn sequence(name: &str) -> Option<(i32, &str)> {
    let read = |digits: usize| {
        let (head, tail) = name.split_at_checked(name.len().checked_sub(digits)?)?;
        Some((tail.parse::<i32>().ok()?, head))
    };
    // `lock--2147483648`: eleven signs with its own. Of `lock-2147483648` the dash is the prefix's.
    let longest = read(11).filter(|(n, head)| *n <= -1_000_000_000 && head.ends_with('-'));
    longest.or_else(|| read(10).filter(|(_, head)| !name[head.len()..].starts_with('+')))
}

/// `None` for an entry of another kind of client: they know nothing but exclusive.
fn mode(head: &str) -> Option<Mode> {
    let rest = head.strip_prefix("_c_")?.split_at_checked(36)?.1;
    match rest.strip_prefix('-')?.strip_suffix("lock-")? {
        "" => Some(Mode::Exclusive),
        "shared-" => Some(Mode::Shared),
        other => {
            let n = other.strip_prefix("permit-")?.strip_suffix('-')?;
            Some(Mode::Permit(n.parse::<NonZeroU32>().ok()?))
        }
    }
}

/// A queue in its order: by number, where the smallest follows the largest.
pub(crate) fn in_order(names: &[String]) -> Vec<Child> {
    let mut line: Vec<Child> = names.iter().filter_map(|n| child(n)).collect();
    let Some(any) = line.first().map(|c| c.sequence) else { return line };
    line.sort_by_key(|c| c.sequence.wrapping_sub(any));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(space: &str, name: &str) -> FullName {
        FullName { space: Namespace::new(space).unwrap(), name: Name::new(name).unwrap() }
    }

    #[test]
    fn every_name_has_a_node_of_its_own_and_comes_back() {
        let names =
            ["a", "a/b", ".", "..", ".clients", "%2E", "a:b", "ä", "a b", "x\u{7f}", "a%2Fb"];
        let mut nodes = std::collections::BTreeSet::new();
        for space in ["", "s", "a"] {
            for name in names {
                let node = encode(&lock(space, name));
                assert!(!node.contains('/') && !node.starts_with('.'), "{node}");
                assert_eq!(decode(&node), Some(lock(space, name)), "{node}");
                assert!(nodes.insert(node));
            }
        }
        assert_eq!(decode(CLIENTS), None);
    }

    #[test]
    fn an_exclusive_entry_is_called_as_curator_calls_it() {
        let req: ReqId = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let name = prefix(&req, Mode::Exclusive);
        assert_eq!(name, "_c_01234567-89ab-cdef-0123-456789abcdef-lock-");
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit(NonZeroU32::new(7).unwrap())] {
            let name = format!("{}0000000042", prefix(&req, mode));
            let child = child(&name).unwrap();
            assert_eq!((child.sequence, child.mode), (42, mode), "{name}");
        }
    }

    #[test]
    fn foreign_entries_are_exclusive_and_others_stand_in_no_line() {
        let foreign =
            ["lock-0000000003", "x-__READ__0000000003", "0000000003", "_c_short-lock-0000000003"];
        for name in foreign {
            let child = child(name).unwrap();
            assert_eq!((child.sequence, child.mode), (3, Mode::Exclusive), "{name}");
        }
        for name in ["", "lock", "lock-123", "leases"] {
            assert_eq!(child(name), None, "{name}");
        }
    }

    /// The server counts with 32 bits, and goes on with the smallest number after the largest.
    #[test]
    fn the_order_survives_the_end_of_the_numbers() {
        let names = ["l-2147483646", "l-2147483647", "l--2147483648", "l--2147483647"];
        let mut shuffled: Vec<String> = names.iter().map(ToString::to_string).collect();
        for turn in 0..4 {
            shuffled.rotate_left(1);
            shuffled.swap(0, turn % 4);
            let order: Vec<String> = in_order(&shuffled).into_iter().map(|c| c.name).collect();
            assert_eq!(order, names, "from {shuffled:?}");
        }
        let small: Vec<String> =
            ["l-0000000001", "l--000000001", "l-0000000000"].map(str::to_owned).to_vec();
        let order: Vec<i32> = in_order(&small).into_iter().map(|c| c.sequence).collect();
        assert_eq!(order, [-1, 0, 1]);
    }
}
