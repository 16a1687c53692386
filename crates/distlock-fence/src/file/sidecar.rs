//! The sidecar: two slots, each with a token written twice.
//!
//! A token goes into the slot that does not hold the highest, so that a write torn by a crash
//! spoils no token that counted: the fence is on disk before the data it guards, so nothing was
//! written under a torn one. Writing a number twice shows a torn slot.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

use distlock_core::Token;

use crate::Error;

/// `1 ` (the layout), the token, a space, the token, a line's end.
const SLOT: usize = 2 + 19 + 1 + 19 + 1;

/// The highest token in it, from a descriptor that was not read before; none in an empty one.
pub(super) fn read(sidecar: &File) -> Result<Option<Token>, Error> {
    let mut bytes = Vec::with_capacity(2 * SLOT + 1);
    let len = sidecar.take(2 * SLOT as u64 + 1).read_to_end(&mut bytes)?;
    let slots = bytes[..len.min(2 * SLOT)].chunks(SLOT);
    let highest = slots.filter_map(token).max();
    // One torn slot alone is a first write that never counted. More is not of our making.
    let torn_first = highest.is_none() && len > SLOT;
    if torn_first || len > 2 * SLOT || newer(&bytes) {
        return Err(Error::Layout("the fence beside the file is damaged, or newer".to_owned()));
    }
    Ok(highest)
}

/// Puts a token on disk, beside the highest so far.
pub(super) fn write(sidecar: &File, highest: Option<Token>, token: Token) -> Result<(), Error> {
    let mut first = [0; SLOT];
    let occupied = sidecar.read_at(&mut first, 0)? == SLOT && self::token(&first) == highest;
    let at = if occupied && highest.is_some() { SLOT as u64 } else { 0 };
    let n = token.get();
    sidecar.write_all_at(format!("1 {n:019} {n:019}\n").as_bytes(), at)?;
    sidecar.sync_all()?;
    Ok(())
}

fn token(slot: &[u8]) -> Option<Token> {
    let text = std::str::from_utf8(slot).ok()?;
    let (once, again) = text.strip_prefix("1 ")?.strip_suffix('\n')?.split_once(' ')?;
    (once == again && once.len() == 19).then(|| once.parse().ok()).flatten()
}

/// A slot of a layout we do not know.
fn newer(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|b| b.is_ascii_digit() && *b > b'1')
}
