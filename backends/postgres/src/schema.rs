//! The schema: its name, and the definitions of its tables and functions.
//!
//! The files under `sql/` speak of the schema `distlock`; another name is put in its place, so that
//! what is in the files can be run as it is.

use distlock_core::{Error, Kind};

/// The layout of the tables this build reads and writes.
pub(crate) const TABLES: i32 = 1;
/// The revision of the functions this build brings along. Programs of an earlier one go on with
/// their own plain statements beside them: what changes the meaning of a row or the parts of a hold
/// is another layout.
pub(crate) const CODE: i32 = 9;

/// Making or changing tables holds this advisory lock, one client at a time: "distlock" in numbers.
pub(crate) const DDL: i64 = 0x6469_7374_6c6f_636b;

const LAYOUT: &str = include_str!("../sql/tables.sql");
/// What may be run over what is there already: functions, and tables that came later.
const FUNCTIONS: [&str; 3] = [
    include_str!("../sql/rules.sql"),
    include_str!("../sql/moves.sql"),
    include_str!("../sql/session_locks.sql"),
];

/// What a role needs that uses locks and does not make tables; the laws are run as such a role.
const GRANTS: &str = "-- For each role that uses locks:
-- GRANT USAGE ON SCHEMA distlock TO app;
-- GRANT SELECT ON distlock.layout TO app;
-- and for the default:
-- GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.lock, distlock.waiter, distlock.spent TO app;
-- or for ?algorithm=version:
-- GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.state TO app;
-- or for ?algorithm=advisory and row-lock:
-- GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.held TO app;
-- GRANT SELECT, INSERT, DELETE ON distlock.waiting TO app;
-- GRANT SELECT ON distlock.signs TO app;
-- and for row-lock also:
-- GRANT SELECT, INSERT, UPDATE, DELETE ON distlock.rowlock TO app;
";

/// The longest identifier that the server does not cut.
const LONGEST: usize = 63;

/// The name of a schema, quoted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Schema(String);

impl Schema {
    /// Takes a name.
    ///
    /// # Errors
    /// [`Kind::Usage`] when it is no name.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let digit = name.as_bytes().first().is_some_and(u8::is_ascii_digit);
        if name.is_empty() || name.len() > LONGEST || !name.bytes().all(plain) || digit {
            return Err(Error::new(Kind::Usage, format!("invalid schema name {name:?}"))
                .with_hint("1 to 63 of A-Z a-z 0-9 _, not beginning with a digit"));
        }
        Ok(Self(format!("\"{name}\"")))
    }

    /// The name itself.
    pub(crate) fn name(&self) -> &str {
        self.0.trim_matches('"')
    }

    /// A text about the schema `distlock`, about this one.
    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("distlock.", &format!("{}.", self.0))
    }

    /// Waits for others that make or change tables, and fails where a newer version did.
    fn guard(&self) -> String {
        let (name, layout) = (self.name(), self.fill("distlock.layout"));
        format!(
            "DO $$ BEGIN\n  PERFORM pg_catalog.pg_advisory_xact_lock({DDL});\n  \
             IF EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n\n      \
             ON n.oid = c.relnamespace WHERE n.nspname = '{name}' AND c.relname = 'layout') THEN\n    \
             IF EXISTS (SELECT FROM {layout} WHERE tables <> {TABLES} OR code > {CODE}) THEN\n      \
             RAISE EXCEPTION 'another version made what is in schema {name}: run what that one prints';\n    \
             END IF;\n  END IF;\nEND $$;\n"
        )
    }

    /// The schema itself.
    pub(crate) fn create(&self) -> String {
        format!("CREATE SCHEMA IF NOT EXISTS {};\n", self.0)
    }

    /// The tables, without the mark that they are complete.
    pub(crate) fn tables(&self) -> String {
        self.fill(LAYOUT)
    }

    /// The functions.
    pub(crate) fn functions(&self) -> String {
        FUNCTIONS.map(|text| self.fill(text)).join("\n")
    }

    /// Says which layout and which functions are there now.
    pub(crate) fn mark(&self) -> String {
        self.fill(&format!(
            "INSERT INTO distlock.layout (tables, code) VALUES ({TABLES}, {CODE}) \
             ON CONFLICT (one) DO UPDATE SET tables = excluded.tables, code = excluded.code;\n"
        ))
    }
}

/// Everything that a store of ours needs in a database, as statements to be run by a user that may
/// create a schema. Run again, also while locks are held, it brings what is there up to date and
/// loses nothing; over what a newer version made it fails and changes nothing.
///
/// # Errors
/// [`Kind::Usage`] for an invalid schema name.
pub fn schema(name: &str) -> Result<String, Error> {
    let schema = Schema::new(name)?;
    let parts =
        [schema.guard(), schema.create(), schema.tables(), schema.functions(), schema.mark()];
    Ok(format!("BEGIN;\n{}COMMIT;\n{}", parts.join("\n"), GRANTS.replace("distlock", name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The laws are run with what the pages say.
    #[test]
    fn the_pages_and_what_is_printed_say_the_same_about_rights() {
        let pages = [
            include_str!("../../../docs/stores/postgres.md"),
            include_str!("../../../docs/stores/postgres-version.md"),
            include_str!("../../../docs/stores/postgres-advisory.md"),
            include_str!("../../../docs/stores/postgres-row-lock.md"),
        ];
        let granted = |text: &'static str| {
            let lines = text.lines().map(|l| l.trim_start_matches("-- "));
            lines.filter(|l| l.starts_with("GRANT")).collect::<std::collections::BTreeSet<_>>()
        };
        let said = pages.into_iter().flat_map(granted).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(granted(GRANTS), said);
        assert_eq!(granted(GRANTS).len(), 8);
    }

    #[test]
    fn another_schema_is_meant_everywhere() {
        let text = schema("locks_1").unwrap();
        assert!(text.contains("\"locks_1\".acquire("), "{text}");
        assert!(!text.contains("distlock"), "{text}");
        for odd in ["", "1a", "a.b", "a\"b", "ä", &"x".repeat(64)] {
            assert_eq!(Schema::new(odd).unwrap_err().kind(), Kind::Usage, "{odd}");
        }
    }
}
