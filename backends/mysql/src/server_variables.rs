//! Server variables that weaken durability, and the capability note for each.
//!
//! A grant that was answered must be on disk, or a power cut takes it back and gives it to somebody
//! else. That hangs on more than one setting, each with a note of its own that names it. A setting that
//! the server does not know takes nothing away: it is a fork or a version without it.

use std::collections::HashMap;

use sqlx::{MySqlConnection, Row};

use crate::sql::run;

const FLUSH: &str = "innodb_flush_log_at_trx_commit is not 1: a crash of the server's machine may \
                     forget the last grants and tokens.";
const BINLOG: &str = "The binary log is on and sync_binlog is not 1: after a crash of its machine the \
                      server rolls back commits that the log lacks, so the last grants and tokens may be \
                      forgotten.";
const NOSYNC: &str = "innodb_flush_method does not sync: a crash of the server's machine may forget \
                      grants and tokens, or damage the tables.";
const TORN: &str = "innodb_doublewrite does not protect pages: a crash of the server's machine may damage \
                    the tables.";
const GALERA: &str = "This server is one of a Galera cluster (wsrep_on): GET_LOCK, KILL and row locks are \
                      known to one node only; let all clients name the same one.";

/// What is asked for.
const NAMES: [&str; 8] = [
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "binlog_storage_engine",
    "innodb_flush_method",
    "innodb_doublewrite",
    "wsrep_on",
    "aurora_version",
];

/// What a server is set to.
#[derive(Debug, Default)]
pub(crate) struct Settings(HashMap<String, String>);

impl Settings {
    /// Asks, by name: a server answers for those it knows, and anybody may ask.
    pub(crate) async fn read(conn: &mut MySqlConnection) -> Result<Self, sqlx::Error> {
        let names = NAMES.map(|n| format!("'{n}'")).join(",");
        let sql = format!("SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})");
        let mut all = HashMap::new();
        for row in run(conn, sql).await?.iter().flat_map(|g| &g.rows) {
            let text = |i: usize| -> Result<String, sqlx::Error> {
                let bytes = row.try_get_unchecked::<Vec<u8>, _>(i)?;
                Ok(String::from_utf8_lossy(&bytes).to_ascii_lowercase())
            };
            all.insert(text(0)?, text(1)?);
        }
        Ok(Self(all))
    }

    /// Whether a setting is known and has none of these values.
    fn is_other_than(&self, name: &str, values: &[&str]) -> bool {
        self.0.get(name).is_some_and(|value| !values.contains(&value.as_str()))
    }

    /// What keeps its commits from being durable; nothing when they are.
    pub(crate) fn lacks(&self) -> Vec<&'static str> {
        let mut lacks = Vec::new();
        // MariaDB's 3 syncs as often as 1 and more. One that does not say is not trusted.
        let flush = "innodb_flush_log_at_trx_commit";
        if !self.0.contains_key(flush) || self.is_other_than(flush, &["1", "3"]) {
            lacks.push(FLUSH);
        }
        // A binary log within InnoDB is as durable as the rest.
        if self.is_other_than("log_bin", &["off", "0"])
            && self.is_other_than("sync_binlog", &["1"])
            && self.0.get("binlog_storage_engine").is_none_or(|engine| engine != "innodb")
        {
            lacks.push(BINLOG);
        }
        // Aurora's storage writes log records, not files: these two mean nothing there.
        if !self.0.contains_key("aurora_version") {
            let nosync = |method: &String| method.contains("nosync") || method == "littlesync";
            if self.0.get("innodb_flush_method").is_some_and(nosync) {
                lacks.push(NOSYNC);
            }
            if self.is_other_than("innodb_doublewrite", &["on", "1", "fast", "detect_and_recover"])
            {
                lacks.push(TORN);
            }
        }
        lacks
    }

    /// What else is to be said about it.
    pub(crate) fn warns(&self) -> Option<&'static str> {
        self.is_other_than("wsrep_on", &["off", "0"]).then_some(GALERA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(all: &[(&str, &str)]) -> Settings {
        let usual = [("innodb_flush_log_at_trx_commit", "1"), ("log_bin", "off")];
        let all = usual.iter().chain(all).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Settings(all.collect())
    }

    #[test]
    fn every_setting_that_matters_takes_the_promise_away() {
        for (all, lacks) in [
            (&[][..], &[][..]),
            (&[("innodb_flush_log_at_trx_commit", "2")], &[FLUSH]),
            (&[("innodb_flush_log_at_trx_commit", "3")], &[]),
            (&[("log_bin", "on"), ("sync_binlog", "0")], &[BINLOG]),
            (&[("log_bin", "on"), ("sync_binlog", "100")], &[BINLOG]),
            (&[("log_bin", "on"), ("sync_binlog", "1")], &[]),
            (&[("log_bin", "off"), ("sync_binlog", "0")], &[]),
            (&[("log_bin", "on"), ("sync_binlog", "0"), ("binlog_storage_engine", "innodb")], &[]),
            (&[("innodb_flush_method", "nosync")], &[NOSYNC]),
            (&[("innodb_flush_method", "o_direct")], &[]),
            (&[("innodb_doublewrite", "off")], &[TORN]),
            (&[("innodb_doublewrite", "detect_only")], &[TORN]),
            (&[("innodb_doublewrite", "off"), ("aurora_version", "3.05")], &[]),
        ] {
            assert_eq!(settings(all).lacks(), lacks, "{all:?}");
        }
        assert_eq!(Settings::default().lacks(), [FLUSH], "one that does not say");
        assert_eq!(settings(&[("wsrep_on", "on")]).warns(), Some(GALERA));
        assert_eq!(settings(&[("wsrep_on", "off")]).warns(), None);
    }
}
