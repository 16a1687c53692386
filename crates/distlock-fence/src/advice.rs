//! Do you need a lock? The table of the guide, which `distlock advise` prints.
//!
//! Most of the time the resource can do alone what a lock around it would do worse: one statement
//! cannot be paused between its check and its write. A lock is for work that spans several
//! systems, takes long, or is dear to do twice; then it saves work, and the fence keeps it safe.

mod rows;

use std::fmt;
use std::str::FromStr;

pub use rows::ADVICE;

/// A list of words that print and parse, each with what it means.
macro_rules! words {
    ($(#[$doc:meta])* $Name:ident { $($(#[$of:meta])* $Word:ident = $text:literal, $means:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum $Name { $($(#[$of])* $Word,)* }

        impl $Name {
            /// All of them.
            pub const ALL: &'static [$Name] = &[$($Name::$Word),*];

            /// The word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $($Name::$Word => $text,)* }
            }

            /// What it means, in a few words.
            #[must_use]
            pub const fn means(self) -> &'static str {
                match self { $($Name::$Word => $means,)* }
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl FromStr for $Name {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().copied().find(|word| word.word() == s);
                found.ok_or_else(|| format!("{s:?} is none of {}", [$($text),*].join(", ")))
            }
        }
    };
}

words! {
    /// What is to happen, and must not go wrong when several do it at once.
    Effect {
        /// One row, key or document changes.
        OneRow = "one-row", "one row, key or document changes";
        /// Several rows change together.
        ManyRows = "many-rows", "several rows of one database change together";
        /// Several systems change, or the work is long or dear.
        SeveralSystems = "several-systems", "several systems change, or the work is long or dear";
        /// Something happens once, however often it is asked for.
        Once = "once", "it happens once, however often it is asked for";
        /// There is only one of something.
        Unique = "unique", "there is only one of a name, a seat, an address";
        /// Workers share out jobs.
        WorkQueue = "work-queue", "many workers share out jobs";
    }
}

words! {
    /// Where it happens.
    Resource {
        /// MySQL and MariaDB.
        Mysql = "mysql", "MySQL, MariaDB";
        /// PostgreSQL.
        Postgres = "postgres", "PostgreSQL";
        /// SQLite.
        Sqlite = "sqlite", "SQLite";
        /// Redis.
        Redis = "redis", "Redis, Valkey";
        /// Files.
        File = "file", "a file";
        /// An HTTP service.
        Http = "http", "an HTTP service of your own";
        /// Anything that cannot check.
        Other = "other", "anything that cannot compare: mail, payments, devices";
    }
}

words! {
    /// Whether a lock is needed.
    Need {
        /// The resource does it alone.
        No = "no", "the resource does it alone";
        /// A lock, and the resource compares tokens.
        WithFence = "lock + fence", "a lock saves work, the fence keeps it safe";
        /// A lock, and nothing that compares.
        WithDelay = "lock + delay", "nobody compares: a lock, time to drain, and a key against repeats";
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Advice {
    /// What is to happen.
    pub effect: Effect,
    /// Where.
    pub resources: &'static [Resource],
    /// Whether a lock is needed.
    pub need: Need,
    /// What to do, in a line.
    pub answer: &'static str,
    /// Why that is right, and where it ends.
    pub why: &'static str,
    /// The language of the code: `sql`, `rust`, `sh`, `lua` or `http`.
    pub language: &'static str,
    /// How.
    pub code: &'static str,
}

/// The rows about an effect and a resource; `None` is any.
pub fn advice(
    effect: Option<Effect>,
    resource: Option<Resource>,
) -> impl Iterator<Item = &'static Advice> {
    ADVICE.iter().filter(move |row| {
        effect.is_none_or(|e| row.effect == e)
            && resource.is_none_or(|r| row.resources.contains(&r))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_has_an_answer_and_words_parse_as_they_print() {
        for &effect in Effect::ALL {
            assert_eq!(effect.to_string().parse(), Ok(effect));
            for &resource in Resource::ALL {
                assert_eq!(resource.to_string().parse(), Ok(resource));
                let found = advice(Some(effect), Some(resource)).count();
                assert!((1..=2).contains(&found), "{effect}, {resource}: {found}");
            }
        }
        assert!("two-rows".parse::<Effect>().unwrap_err().contains("one-row, many-rows"));
        assert_eq!(advice(None, None).count(), ADVICE.len());
    }
}
