//! How a store in memory misbehaves on command.

use std::time::Duration;

use distlock_core::{Clock, Error, Kind, engine, simulation};

/// How a node or store misbehaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fault {
    /// It does not.
    #[default]
    None,
    /// Every call fails at once, as without a connection.
    Down,
    /// No call arrives and none is answered, as with packets dropped.
    Silent,
    /// Calls are served, but no answer comes back.
    Mute,
    /// Calls arrive after this long, whether or not somebody still waits for the answer.
    Late(Duration),
    /// Calls are served at once, but their answers take this long.
    Tardy(Duration),
    /// The world of a simulation carries requests and answers, and decides what becomes of them.
    Simulated,
}

impl Fault {
    /// One call: it travels, is served, and its answer travels back, as the fault has it.
    pub(crate) async fn call<T: Send + 'static>(
        self,
        clock: &Clock,
        site: &str,
        work: impl Fn() -> T + Send + 'static,
    ) -> Result<T, Error> {
        match self {
            Fault::None => Ok(work()),
            Fault::Down => Err(Error::new(Kind::Unreachable, "this node is down")
                .store(site)
                .with_hint("a test took it down")),
            Fault::Simulated => simulation::call(site, std::any::type_name::<T>(), work).await,
            Fault::Silent => std::future::pending().await,
            Fault::Mute => {
                work();
                std::future::pending().await
            }
            Fault::Tardy(d) => {
                let answer = work();
                clock.sleep(d).await;
                Ok(answer)
            }
            Fault::Late(d) => {
                let (tx, rx) = tokio::sync::oneshot::channel();
                let clock = clock.clone();
                engine::spawn(async move {
                    clock.sleep(d).await;
                    let _ = tx.send(work());
                });
                rx.await.map_err(|_| Error::new(Kind::Closed, "the library's thread ended"))
            }
        }
    }
}
