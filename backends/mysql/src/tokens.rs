//! Tokens for locks that are kept elsewhere: the lock's row counts them, in a commit of its own.
//!
//! A row lock's transaction may be rolled back, and its token with it if it were written there.

use distlock_core::state::Claim;
use distlock_core::{Error, FullName, Kind, Token};
use distlock_sql::Trouble;
use sqlx::MySqlConnection;

use crate::errors::calling;
use crate::schema::Tables;
use crate::sql::{NOW, at, hex, run};
use crate::sweep::Pace;

/// A new token for a lock, and who holds it written down for others to see.
pub(crate) async fn next(
    conn: &mut MySqlConnection,
    tables: &Tables,
    lock: &FullName,
    claim: &Claim,
    holder: u64,
    sweep: &Pace,
) -> Result<Token, Trouble> {
    let Tables { lock: table, meta, held, .. } = tables;
    let (space, name) = (hex(lock.space.as_str()), hex(lock.name.as_str()));
    let text = serde_json::to_vec(claim)
        .map_err(|e| Trouble::answered(Error::new(Kind::Store, "no claim").because(e)))?;
    let sql = format!(
        "INSERT IGNORE INTO {table} (space, name, ver, hi) \
         SELECT {space}, {name}, {NOW}, floor FROM {meta} WHERE one=1 LOCK IN SHARE MODE; \
         UPDATE {table} SET ver=ver+1, hi=LAST_INSERT_ID(GREATEST(hi+1,{NOW})) WHERE {}; \
         REPLACE INTO {held} (space, name, req, token, granted, conn, claim) \
         VALUES ({space}, {name}, {}, LAST_INSERT_ID(), {NOW}, {holder}, {})",
        at(lock),
        hex(claim.req.as_bytes()),
        hex(text)
    );
    loop {
        let given = run(conn, sql.clone()).await.map_err(calling)?;
        if given.first().is_some_and(|g| g.done.rows_affected() > 0) {
            sweep.made_a_row();
        }
        let counted = given.get(1).filter(|g| g.done.rows_affected() > 0);
        // A row that was made this moment may look old enough to be swept: then it is made again.
        let Some(counted) = counted else { continue };
        return Token::new(counted.done.last_insert_id()).map_err(Trouble::answered);
    }
}
