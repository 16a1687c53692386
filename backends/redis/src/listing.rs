//! The pages of one list: names are collected by one scan of the keys, however many pages follow.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock_core::{BootInstant, Clock, Error, FullName, Name, Namespace};

/// How long the names of a list may be used for its next pages.
const PAGES: Duration = Duration::from_secs(30);

/// The names that the last list had not come to.
#[derive(Default)]
pub(crate) struct Listing(Mutex<Option<Rest>>);

struct Rest {
    space: Namespace,
    prefix: String,
    /// The last name of the page before.
    after: Name,
    names: Vec<FullName>,
    until: BootInstant,
}

impl Listing {
    /// The names of a page and of all that follow it, in order: from the list that this continues,
    /// or from a scan.
    pub(crate) async fn names(
        &self,
        clock: &Clock,
        (space, prefix, after): (&Namespace, &str, Option<&Name>),
        scan: impl Future<Output = Result<Vec<FullName>, Error>>,
    ) -> Result<Vec<FullName>, Error> {
        let rest = self.rest().take();
        if let Some(rest) = rest
            && rest.space == *space
            && rest.prefix == prefix
            && Some(&rest.after) == after
            && clock.now() < rest.until
        {
            return Ok(rest.names);
        }
        let mut names = scan.await?;
        names.sort();
        names.dedup();
        names.retain(|lock| after.is_none_or(|after| lock.name > *after));
        Ok(names)
    }

    /// Keeps the names that a full page did not come to for the page after it.
    pub(crate) fn keep(&self, clock: &Clock, prefix: &str, last: &FullName, names: &[FullName]) {
        let rest = names.partition_point(|lock| lock <= last);
        *self.rest() = Some(Rest {
            space: last.space.clone(),
            prefix: prefix.to_owned(),
            after: last.name.clone(),
            names: names[rest..].to_vec(),
            until: clock.now().plus(PAGES),
        });
    }

    fn rest(&self) -> std::sync::MutexGuard<'_, Option<Rest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
