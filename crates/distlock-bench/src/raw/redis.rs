//! `SET key value NX PX ttl`, then a script that compares and deletes: the recipe, on multiplexed
//! connections that are driven where ours is, on the library's thread. Over several servers both go
//! to all of them at once.

use std::net::SocketAddr;
use std::sync::Arc;

use distlock::Error;
use distlock::backend::engine;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ProtocolVersion, RedisConnectionInfo};
use tokio::sync::oneshot;

use super::fail;

const RELEASE: &str =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) else return 0 end";

/// The key of a name.
pub(crate) fn key(name: usize) -> String {
    format!("raw{name}")
}

/// Which servers each name is kept on.
#[derive(Clone)]
pub(crate) struct Redis {
    names: Arc<Vec<(String, Vec<MultiplexedConnection>)>>,
    script: Arc<redis::Script>,
}

impl Redis {
    /// Connects; `places` says at which servers each name is kept.
    pub(crate) async fn open(places: Vec<Vec<SocketAddr>>) -> Result<Self, Error> {
        let mut open: Vec<(SocketAddr, MultiplexedConnection)> = Vec::new();
        let mut all = Vec::new();
        let script = Arc::new(redis::Script::new(RELEASE));
        for (name, servers) in places.into_iter().enumerate() {
            let mut lanes = Vec::new();
            for server in servers {
                let known = open.iter().find(|(at, _)| *at == server).map(|(_, c)| c.clone());
                let lane = match known {
                    Some(lane) => lane,
                    None => {
                        let mut lane = connect(server).await?;
                        let load = redis::cmd("SCRIPT").arg("LOAD").arg(RELEASE).to_owned();
                        lane.send_packed_command(&load).await.map_err(fail)?;
                        open.push((server, lane.clone()));
                        lane
                    }
                };
                lanes.push(lane);
            }
            all.push((key(name), lanes));
        }
        Ok(Self { names: Arc::new(all), script })
    }

    /// Takes, or gives back.
    pub(crate) async fn call(&self, name: usize, take: bool) {
        let (key, lanes) = &self.names[name];
        let mut cmd: Cmd;
        match take {
            true => {
                cmd = redis::cmd("SET");
                cmd.arg(key).arg("somebody").arg("NX").arg("PX").arg(10_000);
            }
            false => {
                cmd = redis::cmd("EVALSHA");
                cmd.arg(self.script.get_hash()).arg(1).arg(key).arg("somebody");
            }
        }
        let call = |lane: &MultiplexedConnection| {
            let (mut lane, cmd) = (lane.clone(), cmd.clone());
            async move { lane.send_packed_command(&cmd).await }
        };
        match &lanes[..] {
            [lane] => drop(call(lane).await),
            lanes => drop(join_all(lanes.iter().map(call)).await),
        }
    }
}

async fn connect(server: SocketAddr) -> Result<MultiplexedConnection, Error> {
    let (tx, rx) = oneshot::channel();
    engine::spawn(async move {
        let open = async {
            use redis::IntoConnectionInfo;
            let info = format!("redis://{server}").into_connection_info()?;
            let login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
            let client = Client::open(info.set_redis_settings(login))?;
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        drop(tx.send(open.await));
    });
    rx.await.map_err(fail)?.map_err(fail)
}
