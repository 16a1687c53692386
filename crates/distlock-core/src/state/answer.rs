//! The specification's replies as the answers of a lease store, for stores that run it as it is.

use super::{Left, Pulse, Refusal, Reply};
use crate::busy::Standing;
use crate::error::{Error, Kind};
use crate::lease::{Answer, Renewal};
use crate::seam::{Forced, Released};
use crate::token::TokenRange;

/// The answer to an acquire.
///
/// # Errors
/// When the request can never be granted as it stands, or the reply does not fit.
pub fn acquired(reply: Reply) -> Result<Answer, Error> {
    let standing = |ahead, why: Left| Standing {
        holder: why.holder,
        ahead: Some(ahead),
        left: why.left,
        note: None,
    };
    Ok(match reply {
        Reply::Granted { token, block, remaining, waiters, .. } => {
            Answer::Granted { tokens: TokenRange::new(token, block)?, left: remaining, waiters }
        }
        Reply::Waiting { ahead, why } => Answer::Waiting(standing(ahead, why)),
        Reply::Busy { ahead, why } => Answer::Busy(standing(ahead, why)),
        Reply::Spent(_) => Answer::Spent,
        Reply::Refused(Refusal::PermitsDiffer(n)) => {
            return Err(Error::new(Kind::Usage, format!("the lock is in use with {n} permits"))
                .with_hint("all who share a lock by permits must ask with the same number"));
        }
        Reply::Refused(Refusal::ModeDiffers(mode)) => {
            return Err(Error::new(Kind::Usage, format!("this owner holds the lock as {mode}"))
                .with_hint("it would wait for itself: release it first, or use another owner"));
        }
        other => return Err(odd(&other)),
    })
}

/// The answer to a heartbeat.
///
/// # Errors
/// When the reply does not fit.
pub fn pulsed(reply: Reply) -> Result<Pulse, Error> {
    match reply {
        Reply::Pulse(pulse) => Ok(pulse),
        other => Err(odd(&other)),
    }
}

/// The answer to a renewal.
#[must_use]
pub fn renewed(reply: Result<Reply, Error>) -> Renewal {
    match reply {
        Ok(Reply::Renewed { remaining, waiters }) => Renewal::Held { left: remaining, waiters },
        Ok(Reply::Lost(why)) => Renewal::Lost(why),
        Ok(other) => Renewal::Unknown(odd(&other)),
        Err(e) => Renewal::Unknown(e),
    }
}

/// The answer to a release.
///
/// # Errors
/// When the reply does not fit.
pub fn released(reply: Reply) -> Result<Released, Error> {
    match reply {
        Reply::Released => Ok(Released::Released),
        Reply::Lost(_) => Ok(Released::WasLost),
        other => Err(odd(&other)),
    }
}

/// The answer to a force.
///
/// # Errors
/// When the reply does not fit.
pub fn forced(reply: Reply) -> Result<Forced, Error> {
    match reply {
        Reply::Forced => Ok(Forced::Done),
        Reply::NoMatch => Ok(Forced::NoMatch),
        other => Err(odd(&other)),
    }
}

/// The specification answers each operation in its own words; another one is a fault of ours.
fn odd(reply: &Reply) -> Error {
    Error::new(Kind::Store, format!("an answer to another question: {reply:?}")).unknown()
}
