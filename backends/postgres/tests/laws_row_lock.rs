//! The laws every store must pass, with `?algorithm=row-lock`.

#[path = "laws/grants.rs"]
mod grants;
#[path = "laws/sessions.rs"]
mod sessions;

use distlock_postgres::Algorithm::RowLock;

distlock_testkit::suite!(sessions::suite(RowLock, |_| Box::pin(sessions::start(RowLock))));
