//! What the version algorithm needs of a table.

use distlock_core::{Error, FullName, Micros, Name, Namespace};

/// A lock's row: its whole state, and a number that changes with every write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Changes with every write.
    pub version: u64,
    /// The state.
    pub text: String,
}

/// A row to be written if it is still what it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Which lock.
    pub lock: FullName,
    /// The version it was read with; `None` when there was no row.
    pub was: Option<u64>,
    /// The new state.
    pub text: String,
    /// From then on, on the database's clock, nothing but the highest token needs remembering. A
    /// day later the row may be removed.
    pub idle_from: Micros,
}

/// Which rows to list, in the order of their names' bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The namespace.
    pub space: Namespace,
    /// What the names start with.
    pub prefix: String,
    /// Only names after this one.
    pub after: Option<Name>,
    /// At most this many rows.
    pub limit: usize,
}

/// A table with one row a lock.
///
/// # Contract
/// * A write happens only if the row's version is still the one it was read with (or there is still
///   no row), and changes the version. The row's next reader, wherever it is, sees it.
/// * Time is the database's, read with the rows, not before them; it counts from 1970.
/// * A call may be delivered twice. Each is bounded in time.
pub trait Rows: Send + Sync + 'static {
    /// The rows of some locks, in the same order, and what time it is.
    fn read(
        &self,
        locks: Vec<FullName>,
    ) -> impl Future<Output = Result<(Vec<Option<Row>>, Micros), Error>> + Send;

    /// Writes rows, each for itself; says for each whether it was still what it was.
    fn write(&self, rows: Vec<Write>) -> impl Future<Output = Result<Vec<bool>, Error>> + Send;

    /// Lists rows, and says what time it is.
    fn page(
        &self,
        page: Page,
    ) -> impl Future<Output = Result<(Vec<(Name, Row)>, Micros), Error>> + Send;

    /// Removes a few rows that have been idle for a day.
    fn sweep(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Ends connections.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
