//! A put on a lease, then a delete: on one channel that is driven where ours is, on the library's
//! thread. Beside them the lock service that every etcd offers.

use std::net::SocketAddr;
use std::sync::Arc;

use distlock::Error;
use distlock::backend::engine;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::fail;

/// Longer than any run.
const TTL: i64 = 600;

#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Granted {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Lock {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Locked {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

/// An answer of which nothing matters.
#[derive(Clone, PartialEq, Message)]
struct Done {}

/// Where the connection is driven.
#[derive(Clone, Copy)]
struct OnLibrary;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for OnLibrary {
    fn execute(&self, work: F) {
        engine::spawn(work);
    }
}

/// One client of one server.
#[derive(Clone)]
pub(crate) struct Etcd {
    channel: Channel,
    /// One for each task: the lock service takes two locks of one lease for the same.
    leases: Arc<Vec<i64>>,
}

impl Etcd {
    /// Connects, and makes a lease for each of so many tasks.
    pub(crate) async fn open(server: SocketAddr, tasks: usize) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(format!("http://{server}")).map_err(fail)?;
        let channel = endpoint.executor(OnLibrary).connect_lazy();
        let mut client = Self { channel, leases: Arc::default() };
        let mut leases = Vec::new();
        for _ in 0..tasks {
            let grant = Grant { ttl: TTL, id: 0 };
            let granted: Granted = client.call("/etcdserverpb.Lease/LeaseGrant", grant).await?;
            leases.push(granted.id);
        }
        client.leases = Arc::new(leases);
        Ok(client)
    }

    async fn call<Q, R>(&self, path: &'static str, question: Q) -> Result<R, Error>
    where
        Q: Message + Send + Sync + 'static,
        R: Message + Default + Send + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        let answer = async {
            grpc.ready().await.map_err(|e| Status::from_error(Box::new(e)))?;
            let (path, codec) = (PathAndQuery::from_static(path), ProstCodec::<Q, R>::default());
            grpc.unary(Request::new(question), path, codec).await
        };
        Ok(answer.await.map_err(fail)?.into_inner())
    }

    /// Takes, or gives back.
    pub(crate) async fn write(&self, name: usize, take: bool) -> Result<(), Error> {
        let key = format!("/raw/{name}").into_bytes();
        let Done {} = match take {
            true => {
                let put = Put { key, value: b"somebody".to_vec(), lease: self.leases[0] };
                self.call("/etcdserverpb.KV/Put", put).await?
            }
            false => self.call("/etcdserverpb.KV/DeleteRange", Delete { key }).await?,
        };
        Ok(())
    }

    /// Takes a lock of the lock service; answers the key that holds it.
    pub(crate) async fn service_lock(&self, name: &str, task: usize) -> Result<Vec<u8>, Error> {
        let lease = self.leases[task % self.leases.len()];
        let lock = Lock { name: format!("/service/{name}").into_bytes(), lease };
        let Locked { key } = self.call("/v3lockpb.Lock/Lock", lock).await?;
        Ok(key)
    }

    /// Gives it back.
    pub(crate) async fn service_unlock(&self, key: Vec<u8>) -> Result<(), Error> {
        let Done {} = self.call("/v3lockpb.Lock/Unlock", Delete { key }).await?;
        Ok(())
    }
}
