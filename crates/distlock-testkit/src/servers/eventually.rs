//! Waiting until several servers agree.

use std::time::Duration;

use distlock_core::{Clock, Error, Kind};

/// Elections and hand-shakes take a few seconds; on a busy machine, several times that.
const PATIENCE: Duration = Duration::from_secs(80);
const BETWEEN: Duration = Duration::from_millis(50);

/// Asks until there is a value; `Err` of the question says what is still amiss.
pub(super) async fn eventually<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, Error> {
    let clock = Clock::system();
    let end = clock.now().plus(PATIENCE);
    loop {
        match ask().await {
            Ok(value) => return Ok(value),
            Err(amiss) if clock.now() >= end => {
                return Err(Error::new(Kind::Store, format!("{what}: not within {PATIENCE:?}"))
                    .with_hint(format!("the last thing amiss was: {amiss}")));
            }
            Err(_) => clock.sleep(BETWEEN).await,
        }
    }
}
