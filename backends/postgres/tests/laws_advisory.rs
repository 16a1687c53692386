//! The laws every store must pass, with `?algorithm=advisory`.

#[path = "laws/grants.rs"]
mod grants;
#[path = "laws/sessions.rs"]
mod sessions;

use distlock_postgres::Algorithm::Advisory;

distlock_testkit::suite!(sessions::suite(Advisory, |_| Box::pin(sessions::start(Advisory))));
