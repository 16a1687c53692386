//! How an ask is written down. The scripts keep it as it comes and read from it what they need.

use std::time::Duration;

use distlock_core::Mode;
use distlock_core::backend::Ask;

/// Longer than anybody waits, and exact in the server's arithmetic (doubles) when added to the time.
const LONGEST: u128 = 1 << 50;

/// A duration in the scripts' unit.
pub(super) fn micros(d: Duration) -> u64 {
    d.as_micros().min(LONGEST) as u64
}

/// A number as text.
pub(super) fn number(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// A claim: min_hold, ttl, lock_delay, mode, block, owner, via, label.
pub(super) fn claim(ask: &Ask, via: &str) -> Vec<u8> {
    let (owner, label) = (ask.owner.as_str(), ask.label.as_str());
    let mut blob = Vec::with_capacity(35 + owner.len() + via.len() + label.len());
    for d in [ask.min_hold, ask.ttl, ask.lock_delay] {
        blob.extend((micros(d) as f64).to_le_bytes());
    }
    blob.extend(mode_to(ask.mode).to_le_bytes());
    blob.extend(ask.block.get().to_le_bytes());
    for text in [owner, via, label] {
        // None of them can hold a zero byte: owner and label by their types, via by our making.
        blob.extend(text.bytes());
        blob.push(0);
    }
    blob
}

/// 0 exclusive, -1 shared, n permits.
fn mode_to(mode: Mode) -> i32 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit(n) => i32::try_from(n.get()).unwrap_or(i32::MAX),
    }
}
