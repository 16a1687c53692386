//! The fence of an HTTP service: a header in, 412 out.
//!
//! | request | answer |
//! |---|---|
//! | no `Fencing-Token` | 428 Precondition Required |
//! | not a number from 1 to 2^63 − 1, or several | 400 Bad Request |
//! | below the highest seen for its resource | 412 Precondition Failed, with `Fencing-Highest` |
//! | else | the service's, made while the resource is closed to others |

mod client;
mod server;

use http::{HeaderName, HeaderValue, Request};

use distlock_core::Token;

pub use client::{SendToken, SendTokenLayer};
pub use server::{FenceLayer, Fenced, by_path};

/// The header that carries the token.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");
/// The header of a refusal that names the highest token seen.
pub const FENCING_HIGHEST: HeaderName = HeaderName::from_static("fencing-highest");

/// Puts a token on a request, in place of one that may be there.
pub fn set_token<B>(request: &mut Request<B>, token: Token) {
    request.headers_mut().insert(FENCING_TOKEN, value(token));
}

fn value(token: Token) -> HeaderValue {
    // From a number and not from text: digits always make a header.
    HeaderValue::from(token.get())
}
