//! `file:DIR`: locks that the kernel keeps.
//!
//! 1. A lock is a file; holding it is holding the kernel's exclusive `flock` on it. A process that
//!    dies, however, frees it at once.
//! 2. The file's content remembers the fencing token, the holder and, after a release, how long
//!    nobody may have it yet.
//! 3. A waiter puts a ticket into the lock's queue: a small file whose name sorts by arrival and
//!    names its process. A ticket whose process is gone does not count.
//! 4. Only the first waiter in the queue blocks in `flock`, on one thread. A waiter that becomes
//!    the first is told by a datagram; a look once a second finds what no datagram could tell.
//!
//! | file | what |
//! |---|---|
//! | `store`, `pending` | the public store, the future of a lock call and its answer |
//! | `open`, `options` | from a URL or a directory to a store |
//! | `capability` | what the store promises |
//! | `worker`, `next_waiter`, `hold` | the one thread that does all file work: commands, whose turn it is, grant and release |
//! | `blocker` | the thread that waits inside `flock` |
//! | `lockfile`, `record` | a lock file and what stands in it |
//! | `queue`, `live_processes` | tickets, and which processes are alive |
//! | `tokens` | tokens that never go back, also over a sweep or a reboot |
//! | `layout`, `file_name` | the directory: its version, and the names in it |
//! | `sweep`, `inspect` | removing what is idle, listing what is not |
//! | `errors` | from errors of the operating system to ours |

mod blocker;
mod capability;
mod errors;
mod file_name;
mod hold;
mod inspect;
mod layout;
mod live_processes;
mod lockfile;
mod next_waiter;
mod open;
mod options;
mod pending;
mod queue;
mod record;
mod store;
mod sweep;
mod tokens;
mod worker;

pub use capability::{CAPABILITY, capabilities};
pub use open::{open, open_to_look};
pub use options::FileOptions;
pub use store::{FileConn, FileStore};
