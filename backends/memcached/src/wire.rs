//! The few commands of memcached's meta protocol that a lock needs, and their answers.
//!
//! Each command carries a number that its answer repeats: an answer to another question means that
//! the stream is out of step, and nothing behind it can be believed.

use std::io::Write;

/// No answer of ours is longer; a server that sends more is none we know.
const LINE_MAX: usize = 2048;
const VALUE_MAX: usize = 1 << 21;

/// The version of an item, and the connection that it was told on.
///
/// A server that is started again counts its versions from one again: an old number may be that of
/// another's new item. A server cannot be started again without ending its connections, so a version
/// is only ever used on the connection that told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Version {
    pub(crate) cas: u64,
    pub(crate) on: u64,
}

/// When a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum If {
    /// Nothing is there.
    Absent,
    /// What is there has not changed since.
    Same(Version),
}

/// One command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Get { key: String },
    Set { key: String, value: Vec<u8>, secs: u32, when: If },
    Delete { key: String, version: Version },
}

/// One answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// The value, its version, and how many seconds it has left.
    Hit { value: Vec<u8>, version: Version, left: u32 },
    /// Stored (as this version) or deleted.
    Done { version: Version },
    /// Nothing is there.
    Missing,
    /// Something is there already.
    Taken,
    /// It has changed since.
    Changed,
    /// The server could not, and says why.
    Trouble(String),
}

impl Command {
    /// Whether it builds on what another connection told.
    pub(crate) fn stale(&self, on: u64) -> bool {
        match self {
            Command::Set { when: If::Same(version), .. } | Command::Delete { version, .. } => {
                version.on != on
            }
            Command::Set { when: If::Absent, .. } | Command::Get { .. } => false,
        }
    }

    pub(crate) fn encode(&self, number: u32, out: &mut Vec<u8>) {
        // Writing to memory does not fail.
        let _ = match self {
            Command::Get { key } => write!(out, "mg {key} v c t O{number}\r\n"),
            Command::Delete { key, version: Version { cas, .. } } => {
                write!(out, "md {key} C{cas} O{number}\r\n")
            }
            Command::Set { key, value, secs, when } => {
                let length = value.len();
                let _ = match when {
                    If::Absent => write!(out, "ms {key} {length} ME T{secs} c O{number}\r\n"),
                    If::Same(Version { cas, .. }) => {
                        write!(out, "ms {key} {length} C{cas} T{secs} c O{number}\r\n")
                    }
                };
                out.extend_from_slice(value);
                out.write_all(b"\r\n")
            }
        };
    }
}

/// One answer, the number of the question it answers (an error has none), and its length.
pub(crate) type Parsed = (Reply, Option<u32>, usize);

/// The first answer in a buffer; `None` while it is incomplete.
///
/// # Errors
/// What stands there, when it is no answer.
pub(crate) fn parse(buffer: &[u8], on: u64) -> Result<Option<Parsed>, String> {
    let Some(end) = buffer.iter().position(|b| *b == b'\n') else {
        return if buffer.len() > LINE_MAX { Err(shown(buffer)) } else { Ok(None) };
    };
    let garbage = || shown(&buffer[..end]);
    let line = std::str::from_utf8(&buffer[..end]).map_err(|_| garbage())?;
    let line = line.strip_suffix('\r').ok_or_else(garbage)?;
    let mut words = line.split(' ');
    let head = words.next().unwrap_or_default();
    if matches!(head, "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR") {
        return Ok(Some((Reply::Trouble(line.to_owned()), None, end + 1)));
    }
    let size = match head {
        "VA" => Some(words.next().and_then(|n| n.parse::<usize>().ok()).ok_or_else(garbage)?),
        _ => None,
    };
    let flags = Flags::read(words).ok_or_else(garbage)?;
    let answer = |reply, length| Ok(Some((reply, flags.number, length)));
    match (head, size) {
        (_, Some(size)) if size <= VALUE_MAX => {
            let start = end + 1;
            let Some(value) = buffer.get(start..start + size + 2) else { return Ok(None) };
            let value = value.strip_suffix(b"\r\n").ok_or_else(garbage)?.to_vec();
            let (Some(cas), Some(left)) = (flags.cas, flags.left) else { return Err(garbage()) };
            answer(Reply::Hit { value, version: Version { cas, on }, left }, start + size + 2)
        }
        ("HD", None) => {
            answer(Reply::Done { version: Version { cas: flags.cas.unwrap_or(0), on } }, end + 1)
        }
        ("EN" | "NF", None) => answer(Reply::Missing, end + 1),
        ("NS", None) => answer(Reply::Taken, end + 1),
        ("EX", None) => answer(Reply::Changed, end + 1),
        _ => Err(garbage()),
    }
}

struct Flags {
    number: Option<u32>,
    cas: Option<u64>,
    left: Option<u32>,
}

impl Flags {
    /// `None` when a flag is not what it should be. One that does not expire says -1.
    fn read<'a>(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut flags = Self { number: None, cas: None, left: None };
        for word in words.filter(|w| !w.is_empty()) {
            let (flag, value) = word.split_at_checked(1)?;
            match flag {
                "O" => flags.number = Some(value.parse().ok()?),
                "c" => flags.cas = Some(value.parse().ok()?),
                "t" if value == "-1" => flags.left = Some(u32::MAX),
                "t" => flags.left = Some(value.parse().ok()?),
                _ => {}
            }
        }
        Some(flags)
    }
}

/// The beginning of what was received, fit to print.
pub(crate) fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_not_yet() {
        let text = b"VA 2 c7 t5 O3\r\nhi\r\nHD c9 O4\r\n";
        let version = |cas| Version { cas, on: 1 };
        let hit = Reply::Hit { value: b"hi".to_vec(), version: version(7), left: 5 };
        let parse = |text: &[u8]| super::parse(text, 1);
        for end in 0..19 {
            assert_eq!(parse(&text[..end]), Ok(None), "{end}");
        }
        assert_eq!(parse(text), Ok(Some((hit, Some(3), 19))));
        assert_eq!(
            parse(&text[19..]),
            Ok(Some((Reply::Done { version: version(9) }, Some(4), 10)))
        );
        assert_eq!(parse(b"EN\r\n"), Ok(Some((Reply::Missing, None, 4))));
        assert_eq!(parse(b"EN O1\r\n"), Ok(Some((Reply::Missing, Some(1), 7))));
        assert_eq!(parse(b"NS c0 O1\r\n"), Ok(Some((Reply::Taken, Some(1), 10))));
        let oom = "SERVER_ERROR out of memory storing object";
        let trouble = Reply::Trouble(oom.to_owned());
        assert_eq!(parse(format!("{oom}\r\n").as_bytes()), Ok(Some((trouble, None, 43))));
    }

    #[test]
    fn what_is_no_answer_is_said_so() {
        let huge = vec![b'x'; LINE_MAX + 1];
        let wrong: [&[u8]; 8] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"+PONG\r\n",
            b"\xff\xfe\r\n",
            b"HD\n",
            b"VA x\r\n",
            b"VA 2 c1 t1 O1\r\nhixx",
            b"VA 99999999 c1 t1 O1\r\n",
            &huge,
        ];
        for text in wrong {
            assert!(parse(text, 1).is_err(), "{}", shown(text));
        }
    }
}
