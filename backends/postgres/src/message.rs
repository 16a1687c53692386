//! What a client is told without asking.

use distlock_core::backend::{Event, Key};
use distlock_core::lease::Wake;
use distlock_core::{FullName, LossReason, Name, Namespace};

/// What a message is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It is a request's turn.
    Turn,
    /// Somebody began to wait for a hold.
    Contended,
    /// A hold was taken away.
    Revoked,
}

/// A message of the function `tell`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
}

impl Message {
    /// Reads a payload: a letter, the request, how long the namespace is, namespace and name.
    pub(crate) fn parse(payload: &str) -> Option<Self> {
        let mut chars = payload.chars();
        let kind = match chars.next()? {
            't' => Kind::Turn,
            'c' => Kind::Contended,
            'x' => Kind::Revoked,
            _ => return None,
        };
        let (req, rest) = chars.as_str().split_at_checked(32)?;
        let (length, rest) = rest.split_once(':')?;
        let (space, name) = rest.split_at_checked(length.parse().ok()?)?;
        let lock = FullName { space: Namespace::new(space).ok()?, name: Name::new(name).ok()? };
        Some(Self { kind, key: Key { lock, req: req.parse().ok()? } })
    }

    /// What it means to the driver.
    pub(crate) fn wake(self) -> Wake {
        match self.kind {
            Kind::Turn => Wake::Turn(self.key.req),
            Kind::Contended => Wake::Event(Event::Contended(self.key)),
            Kind::Revoked => Wake::Event(Event::Lost(self.key, LossReason::Revoked)),
        }
    }
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
            let Message { kind, key } = Message::parse(&text).expect("a message");
            assert_eq!((kind, key.req), (Kind::Turn, ReqId::from_bytes([7; 16])));
            assert_eq!((key.lock.space.as_str(), key.lock.name.as_str()), (space, name));
        }
        for odd in ["", "end", "q", "t12", &format!("t{req}9:a"), &format!("t{req}0:")] {
            assert_eq!(Message::parse(odd), None, "{odd}");
        }
    }
}
