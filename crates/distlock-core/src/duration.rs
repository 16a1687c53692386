//! Durations as people write them: a bare number is seconds, as with flock(1) and sleep(1).

use std::time::Duration;

const UNITS: [(&str, f64); 5] =
    [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// Reads `30`, `0.5`, `500ms`, `10s`, `5m`, `2h`, `1h30m`.
///
/// # Errors
/// A sentence that says what a duration looks like.
pub fn parse(text: &str) -> Result<Duration, String> {
    let fault = || "a duration is a number of seconds, or 500ms, 10s, 5m, 2h, 1h30m".to_owned();
    let mut total = 0.0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(fault());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_| fault())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let factor = match &rest[..letters] {
            // Only alone: in "1m30" the second number could be anything.
            "" if digits == text.trim().len() => 1.0,
            unit => UNITS.iter().find(|(u, _)| *u == unit).ok_or_else(fault)?.1,
        };
        rest = &rest[letters..];
        total += number * factor;
    }
    // Whole microseconds, so that 0.1 is a tenth of a second and not a little more.
    let micros = (total * 1e6).round();
    if micros > 1e6 * 86_400.0 * 36_500.0 {
        return Err("a duration is less than a hundred years".to_owned());
    }
    Ok(Duration::from_micros(micros as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_seconds_and_units_add_up() {
        let ms = |text| parse(text).map(|d| d.as_millis());
        assert_eq!(ms("30"), Ok(30_000));
        assert_eq!(ms("0"), Ok(0));
        assert_eq!(ms("0.5"), Ok(500));
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("10s"), Ok(10_000));
        assert_eq!(ms("5m"), Ok(300_000));
        assert_eq!(ms("1h30m"), Ok(5_400_000));
        assert_eq!(ms("2d"), Ok(172_800_000));
        for wrong in ["", "x", "10x", "-1", "1m30", "5 m", "ms", "1e9", "99999999999d", "."] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
