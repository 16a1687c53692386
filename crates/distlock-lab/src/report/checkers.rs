//! The checkers' numbers in words, for readers who do not know them by heart.

const WORDS: [(&str, &str); 8] = [
    ("C1", "tokens rise"),
    ("C2", "one holder at a time"),
    ("C3", "writes in order"),
    ("C4", "one lock explains it all"),
    ("C5", "no update lost"),
    ("C6", "served in time"),
    ("C7", "nothing left behind"),
    ("C8", "first come, first served"),
];

/// `C2` becomes `C2 (one holder at a time)`; what is no such number stays as it is.
pub(super) fn named(checker: &str) -> String {
    let of = |number: &str| {
        let rest = checker.strip_prefix(number)?;
        (!rest.starts_with(char::is_alphanumeric)).then_some(rest)
    };
    for (number, words) in WORDS {
        if let Some(rest) = of(number) {
            return format!("{number} ({words}){rest}");
        }
    }
    checker.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_get_words() {
        assert_eq!(named("C2"), "C2 (one holder at a time)");
        assert_eq!(named("C1 on redis"), "C1 (tokens rise) on redis");
        assert_eq!(named("C12"), "C12");
        assert_eq!(named("time limit"), "time limit");
    }
}
