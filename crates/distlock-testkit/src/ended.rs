//! What stores owe their users whose locks are a session of the server, when that server ends.

use distlock_core::{Locks, LossReason, Released};

use crate::servers::Server;
use crate::wait::{LONG, soon, take_for, until};

/// Ends a server, by force and in order, while locks of its sessions are held: every guard hears of it
/// without waiting for a renewal, one that is never renewed too, and says so when it is given back.
///
/// # Panics
/// When one does not.
///
/// # Cancel safety
/// Dropping it leaves the server as it is.
pub async fn the_end_is_told_at_once(server: &Server, locks: &Locks) {
    for end in [Server::kill, Server::stop] {
        let renewed = take_for(locks, "a", LONG).await;
        let once = locks.lock("b").ttl(LONG).without_renewal();
        let once = soon("a grant", once.acquire()).await.expect("granted");
        end(server);
        for guard in [renewed, once] {
            assert_eq!(soon("word of it", guard.lost()).await.why, LossReason::Gone);
            assert_eq!(guard.release().await.expect("an answer"), Released::WasLost);
        }
        server.again().await.expect("it starts again");
        until("it answers", async || locks.show("a").await.is_ok()).await;
    }
}
