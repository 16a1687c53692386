//! Who enters when others die, and when.

use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::Postgres;
use distlock_testkit::takeover::{after_a_cut, after_kills};

use crate::kit::{Named, client, client_at, ms, run, url};

pub(crate) const TRIALS: &[Named] =
    &[("the_second_in_line_enters_when_holder_and_head_die_together", together)];

fn together() {
    run(async {
        let server = Postgres::new().start().await.unwrap();
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let dead = [client_at(proxy.addr(), "").await, client_at(proxy.addr(), "").await];
        let (one, other) = (client(&server, "").await, client(&server, "").await);
        let at = url(server.addr(), "");
        let (killed, cut) = tokio::join!(after_kills(&at, &one), after_a_cut(&proxy, dead, &other));
        assert!(killed < ms(1500), "{killed:?}");
        // The turn was given to the dead first, for a second.
        assert!(cut < ms(2500), "{cut:?}");
    });
}
