//! Parses the payload of a NOTIFY (your turn, somebody waits, hold taken away): the lock and the wake-up.

use distlock_core::{Event, FullName, Key, LossReason, Name, Namespace, Wake};

/// Reads a message of the function `tell`: a letter, the request, how long the namespace is, namespace
/// and name. Answers the lock it is about, and what it means to the driver.
pub(crate) fn parse(payload: &str) -> Option<(FullName, Wake)> {
    let mut chars = payload.chars();
    let kind = chars.next()?;
    let (req, rest) = chars.as_str().split_at_checked(32)?;
    let (length, rest) = rest.split_once(':')?;
    let (space, name) = rest.split_at_checked(length.parse().ok()?)?;
    let lock = FullName { space: Namespace::new(space).ok()?, name: Name::new(name).ok()? };
    let req = req.parse().ok()?;
    let key = || Key { lock: lock.clone(), req };
    let wake = match kind {
        't' => Wake::Turn(req),
        'c' => Wake::Event(Event::Contended(key())),
        'x' => Wake::Event(Event::Lost(key(), LossReason::Revoked)),
        _ => return None,
    };
    Some((lock, wake))
}

#[cfg(test)]
mod tests {
    use distlock_core::ReqId;

    use super::*;

    #[test]
    fn any_name_survives_and_nonsense_is_none() {
        let req = "07".repeat(16);
        for (space, name) in [("", "a"), ("shop", "a:b|c 'd\" ä\n"), ("a.b", "3:x")] {
            let text = format!("t{req}{}:{space}{name}", space.len());
            let (lock, wake) = parse(&text).expect("a message");
            assert_eq!(wake, Wake::Turn(ReqId::from_bytes([7; 16])));
            assert_eq!((lock.space.as_str(), lock.name.as_str()), (space, name));
        }
        for odd in ["", "end", "q", "t12", &format!("t{req}9:a"), &format!("t{req}0:")] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }
}
