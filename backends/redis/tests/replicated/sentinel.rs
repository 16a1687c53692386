//! Finding the primary: sentinels that know nothing, are dead, stand still or want a password.

use std::time::Duration;

use distlock_core::{Error, Kind};
use distlock_testkit::servers::{Sentinels, raw};

use crate::kit::*;

pub(crate) const TRIALS: Trials =
    &[("sentinel_troubles_are_told_or_overcome", || play(troubles()))];

const TTL: Duration = Duration::from_secs(10);

async fn troubles() -> Result<(), Error> {
    let set = Sentinels::start().await?;
    let url = sentinel_url(&set, "quarantine=off");

    let wrong = url.replace(Sentinels::SERVICE, "nobody");
    let e = connect(&wrong).await.expect_err("no such primary");
    assert!(e.kind() == Kind::Usage && e.to_string().contains("\"nobody\""), "{e:?}");
    assert!(e.hint().is_some());

    let nowhere = "redis+sentinel://127.0.0.1:1,127.0.0.1:2/mymaster?timeout=2s";
    let e = connect(nowhere).await.expect_err("nobody there");
    assert!(e.kind() == Kind::Unreachable && e.to_string().contains("no sentinel"), "{e:?}");
    assert!(e.to_string().contains("127.0.0.1:1") && e.hint().is_some(), "{e}");

    // One that hangs costs nothing: the others are a majority.
    set.sentinels()[0].pause();
    let (took, a) = timed(connect(&url)).await;
    let a = a?;
    assert!(took < Duration::from_secs(1), "a silent sentinel cost {took:?}");
    give_back(take(&a, "n", TTL).await?).await?;
    set.sentinels()[0].resume();
    set.sentinels()[0].kill();
    give_back(take(&connect(&url).await?, "n", TTL).await?).await?;

    for sentinel in &set.sentinels()[1..] {
        let login = ["ACL", "SETUSER", "default", "resetpass", ">hush"];
        let told = raw(sentinel.addr(), &login).await.expect("an answer");
        assert_eq!(told.to_string(), "OK");
    }
    let e = connect(&url).await.expect_err("a password is wanted");
    let hint = e.hint().unwrap_or_default();
    assert!(e.kind() == Kind::Credentials && hint.contains("sentinel_password"), "{e:?}");
    let e = connect(&format!("{url}&sentinel_password=wrong")).await.expect_err("another one");
    assert!(e.kind() == Kind::Credentials && !format!("{e:?}").contains("wrong\""), "{e:?}");
    let b = connect(&format!("{url}&sentinel_password=hush")).await?;
    give_back(take(&b, "n", TTL).await?).await
}
