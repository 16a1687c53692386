//! A line of a model as the product knows it.

use std::num::NonZeroU32;

use distlock_core::queue::{Entry, Snapshot, Turn, turn};
use distlock_core::{Label, Mode, Token};

/// Whose turn it is in a line of clients and tokens, by the product's own rule.
pub(crate) fn turn_of(line: &[(u8, u8)], me: u8) -> Turn {
    let entry = |(_, t): &(u8, u8)| Entry {
        spot: t.to_string().into(),
        token: token(*t),
        tokens: NonZeroU32::MIN,
        req: None,
        owner: None,
        label: Label::new("x"),
        mode: Mode::Exclusive,
        age: Default::default(),
        left: None,
        lingering: false,
        revoked: false,
    };
    turn(&Snapshot { entries: line.iter().map(entry).collect(), ..Snapshot::default() }, token(me))
}

fn token(n: u8) -> Token {
    Token::new(n.into()).expect("a token")
}
