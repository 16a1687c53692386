//! The statements of the moves, for one schema.

use std::sync::Arc;

use crate::schema::Schema;

const TAKE: &str = include_str!("../sql/acquire.fast.sql");
const CONFIRM: &str = include_str!("../sql/confirm.fast.sql");
const GIVE: &str = include_str!("../sql/release.fast.sql");
const LOOK: &str = include_str!("../sql/inspect.sql");

/// The statements of the moves.
pub(crate) struct Statements {
    pub(crate) take: Arc<str>,
    pub(crate) confirm: Arc<str>,
    pub(crate) acquire: Arc<str>,
    pub(crate) heartbeat: Arc<str>,
    pub(crate) renew: Arc<str>,
    pub(crate) give: Arc<str>,
    pub(crate) release: Arc<str>,
    pub(crate) cancel: Arc<str>,
    pub(crate) force: Arc<str>,
    pub(crate) look: Arc<str>,
}

impl Statements {
    pub(crate) fn new(schema: &Schema) -> Self {
        let sql = |text: &str| schema.fill(text).into();
        Self {
            take: sql(TAKE),
            confirm: sql(CONFIRM),
            acquire: sql("SELECT * FROM distlock.acquire($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)"),
            heartbeat: sql("SELECT * FROM distlock.heartbeat($1,$2,$3,$4,$5)"),
            renew: sql("SELECT * FROM distlock.renew($1,$2,$3,$4)"),
            give: sql(GIVE),
            release: sql("SELECT distlock.release($1,$2,$3)"),
            cancel: sql("SELECT distlock.cancel($1,$2,$3)"),
            force: sql("SELECT distlock.force($1,$2,$3,$4)"),
            look: sql(LOOK),
        }
    }
}
