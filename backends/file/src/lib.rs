//! `file:DIR`: locks that the kernel keeps.
//!
//! 1. A lock is a file; holding it is holding the kernel's exclusive `flock` on it. A process that
//!    dies, however, frees it at once.
//! 2. The file's content remembers the fencing token, the holder and, after a release, how long
//!    nobody may have it yet.
//! 3. Who waits puts a ticket into the lock's line: a small file whose name sorts by arrival and
//!    says whose it is. A ticket whose process is gone counts for nothing.
//! 4. Only the first in line blocks in `flock`, on one thread. Whoever becomes first is told by a
//!    datagram; a look once a second finds what no datagram could tell.
//!
//! | file | what |
//! |---|---|
//! | `store`, `seat` | the public store, the future of a lock call and where it waits |
//! | `capability` | what the store promises |
//! | `worker`, `turn`, `hold` | the one thread that does all file work: commands, whose turn it is, grant and release |
//! | `blocker` | the thread that waits inside `flock` |
//! | `lockfile`, `record` | a lock file and what stands in it |
//! | `line`, `live` | tickets, and which processes are alive |
//! | `fence` | tokens that never go back, also over a sweep or a reboot |
//! | `layout`, `stem` | the directory: its version, and the names in it |
//! | `sweep`, `inspect` | removing what is idle, listing what is not |

mod blocker;
mod capability;
mod driver;
mod errors;
mod file_name;
mod hold;
mod inspect;
mod layout;
mod live_processes;
mod lockfile;
mod next_waiter;
mod pending;
mod queue;
mod record;
mod store;
mod sweep;
mod tokens;
mod worker;

pub use capability::CAPABILITY;
pub use store::{FileConn, FileOptions, FileStore};
