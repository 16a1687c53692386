//! Real servers as values: a private copy on a port of its own, with its data in a directory of
//! its own, that ends and cleans up when the value is dropped.
//!
//! | what | how |
//! |---|---|
//! | any program with a port | [`Program`], [`Server`], [`Port`] |
//! | an etcd, or three | [`etcd()`], [`etcd_tls`], [`etcd_jwt`], [`EtcdCluster`]; [`etcdctl`], [`etcd_metric`], [`etcd_calls`] |
//! | a memcached | [`memcached()`] and others |
//! | a MariaDB | [`Mariadb`] |
//! | a PostgreSQL, a standby of one, or a pooler in front of it | [`Postgres`] |
//! | a redis-server | [`Redis`], or [`redis`] for a plain one |
//! | a redis-server with TLS | [`Certs`] and [`Redis::tls`] |
//! | a server whose wall clock moves | [`WallClock`], [`Redis::clock`], [`Postgres::clock`] |
//! | a primary, replicas and sentinels | [`Sentinels`] |
//! | a Redis Cluster | [`Cluster`], [`Migration`] |
//! | a ZooKeeper, or three | [`zookeeper()`], [`Ensemble`], [`four_letters`] |
//! | talking to one without a client | [`raw`], [`Wire`], [`Reply`] |
//! | what is no server at all | [`Imposter`] |

mod account;
mod cluster;
mod etcd;
mod eventually;
mod imposter;
mod mariadb;
mod memcached;
mod offspring;
mod port;
mod postgres;
mod process;
mod program;
mod redis;
mod resp;
mod sentinels;
mod tls;
mod wallclock;
mod zookeeper;

pub use cluster::{Cluster, Migration};
pub use etcd::{
    EtcdCluster, etcd, etcd_calls, etcd_jwt, etcd_metric, etcd_tls, etcdctl, etcdctl_command,
};
pub use imposter::Imposter;
pub use mariadb::Mariadb;
pub use memcached::{full_memcached, memcached, silent_memcached, tiny_memcached};
pub use port::Port;
pub use postgres::Postgres;
pub use process::Server;
pub use program::Program;
pub use redis::{Redis, redis};
pub use resp::{Reply, Wire, raw};
pub use sentinels::Sentinels;
pub use tls::Certs;
pub use wallclock::WallClock;
pub use zookeeper::{
    Ensemble, ZOOKEEPER_TICK, durable_zookeeper, four_letters, lonely_zookeeper, zookeeper,
    zookeeper_with,
};
