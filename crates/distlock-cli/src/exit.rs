//! What the command says with its exit status, and the failures behind it.

use std::process::ExitCode;

use distlock::{Error, Kind};

/// An exit status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status(pub(crate) u8);

impl Status {
    pub(crate) const OK: Status = Status(0);
    /// What was asked for is not so: a token that is not the holder's.
    pub(crate) const NO: Status = Status(1);
    pub(crate) const USAGE: Status = Status(64);
    pub(crate) const UNREACHABLE: Status = Status(69);
    pub(crate) const INTERNAL: Status = Status(70);
    /// The operating system refuses something ordinary, such as a process.
    pub(crate) const SYSTEM: Status = Status(71);
    pub(crate) const OUTPUT: Status = Status(74);
    pub(crate) const BUSY: Status = Status(75);
    pub(crate) const LOST: Status = Status(76);
    pub(crate) const CREDENTIALS: Status = Status(77);
    pub(crate) const REFUSED: Status = Status(78);
    pub(crate) const MAX_HOLD: Status = Status(124);
    pub(crate) const NOT_EXECUTABLE: Status = Status(126);
    pub(crate) const NOT_FOUND: Status = Status(127);

    /// Ended by a signal, as shells count it.
    pub(crate) fn signal(n: i32) -> Status {
        Status(128u8.saturating_add(u8::try_from(n).unwrap_or(127)))
    }

    fn of(kind: Kind) -> Status {
        match kind {
            Kind::Usage => Status::USAGE,
            Kind::Credentials => Status::CREDENTIALS,
            Kind::Refused | Kind::Unsupported | Kind::Layout => Status::REFUSED,
            Kind::Busy | Kind::Cancelled => Status::BUSY,
            Kind::Lost => Status::LOST,
            Kind::Closed => Status::INTERNAL,
            // Whatever else a store answers, it cannot be worked with just now.
            _ => Status::UNREACHABLE,
        }
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        ExitCode::from(status.0)
    }
}

/// Why a verb did not do what it was asked: a status, what to say, and what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// Nothing to say when it is empty.
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self {
            status: Status::of(e.kind()),
            message: e.to_string(),
            hint: e.hint().map(str::to_owned),
        }
    }
}

/// What a verb comes back with that has done what was asked for, or not.
pub(crate) type Done = Result<(), Failure>;

/// What a verb with an exit status of its own comes back with.
pub(crate) type Outcome = Result<Status, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_trouble_has_its_status() {
        let status = |kind| Failure::from(Error::new(kind, "x")).status.0;
        assert_eq!(status(Kind::Usage), 64);
        assert_eq!(status(Kind::Unreachable), 69);
        assert_eq!(status(Kind::Store), 69);
        assert_eq!(status(Kind::Busy), 75);
        assert_eq!(status(Kind::Lost), 76);
        assert_eq!(status(Kind::Credentials), 77);
        assert_eq!(status(Kind::Refused), 78);
        assert_eq!(status(Kind::Unsupported), 78);
        assert_eq!(Status::signal(15).0, 143);
    }
}
