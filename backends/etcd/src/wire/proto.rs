//! The few messages of etcd's v3 API that a lock needs, by the field numbers of its `rpc.proto`
//! and `kv.proto`, which never change. Written by hand so that the build needs no protoc.
//!
//! Fields nobody reads here are left out: the format skips what it does not know.

use prost::{Message, Oneof};

/// Messages, each field with its encoding and number.
macro_rules! messages {
    ($(
        $(#[$about:meta])*
        $name:ident { $($(#[$note:meta])* $field:ident: $of:ty = ($($encoding:tt)*);)* }
    )*) => {$(
        $(#[$about])*
        #[derive(Clone, PartialEq, Message)]
        pub(crate) struct $name {
            $($(#[$note])* #[prost($($encoding)*)] pub(crate) $field: $of,)*
        }
    )*};
}

messages! {
    /// On every answer: the store's count of changes when it was given.
    #[derive(Copy)]
    Header {
        revision: i64 = (int64, tag = "3");
    }

    KeyValue {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        create_revision: i64 = (int64, tag = "2");
        mod_revision: i64 = (int64, tag = "3");
        value: Vec<u8> = (bytes = "vec", tag = "5");
        lease: i64 = (int64, tag = "6");
    }

    RangeRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        range_end: Vec<u8> = (bytes = "vec", tag = "2");
        limit: i64 = (int64, tag = "3");
        revision: i64 = (int64, tag = "4");
        sort_order: i32 = (int32, tag = "5");
        sort_target: i32 = (int32, tag = "6");
        /// Answered by the member as it knows it, without asking the others.
        serializable: bool = (bool, tag = "7");
        keys_only: bool = (bool, tag = "8");
        count_only: bool = (bool, tag = "9");
        min_create_revision: i64 = (int64, tag = "12");
        max_create_revision: i64 = (int64, tag = "13");
    }

    RangeResponse {
        header: Option<Header> = (message, optional, tag = "1");
        kvs: Vec<KeyValue> = (message, repeated, tag = "2");
        more: bool = (bool, tag = "3");
        count: i64 = (int64, tag = "4");
    }

    PutRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        value: Vec<u8> = (bytes = "vec", tag = "2");
        lease: i64 = (int64, tag = "3");
        ignore_value: bool = (bool, tag = "5");
        ignore_lease: bool = (bool, tag = "6");
    }

    DeleteRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        prev_kv: bool = (bool, tag = "3");
    }

    DeleteResponse {
        prev_kvs: Vec<KeyValue> = (message, repeated, tag = "3");
    }

    /// Of equality: the kind of comparison is field 1, and 0 is "equal".
    Compare {
        target: i32 = (int32, tag = "2");
        key: Vec<u8> = (bytes = "vec", tag = "3");
        with: Option<With> = (oneof = "With", tags = "5, 6");
        /// With it, of all keys from the first up to this.
        range_end: Vec<u8> = (bytes = "vec", tag = "64");
    }

    RequestOp {
        request: Option<Do> = (oneof = "Do", tags = "1, 2, 3, 4");
    }

    ResponseOp {
        /// None after a put.
        response: Option<Done> = (oneof = "Done", tags = "1, 3, 4");
    }

    TxnRequest {
        compare: Vec<Compare> = (message, repeated, tag = "1");
        success: Vec<RequestOp> = (message, repeated, tag = "2");
        failure: Vec<RequestOp> = (message, repeated, tag = "3");
    }

    TxnResponse {
        header: Option<Header> = (message, optional, tag = "1");
        succeeded: bool = (bool, tag = "2");
        responses: Vec<ResponseOp> = (message, repeated, tag = "3");
    }

    LeaseGrantRequest {
        ttl: i64 = (int64, tag = "1");
        id: i64 = (int64, tag = "2");
    }

    LeaseRevokeRequest {
        id: i64 = (int64, tag = "1");
    }

    LeaseKeepAliveRequest {
        id: i64 = (int64, tag = "1");
    }

    /// The answer to a grant and to a keep-alive.
    LeaseResponse {
        id: i64 = (int64, tag = "2");
        ttl: i64 = (int64, tag = "3");
    }

    LeaseKeysRequest {
        id: i64 = (int64, tag = "1");
        keys: bool = (bool, tag = "2");
    }

    LeaseKeysResponse {
        keys: Vec<Vec<u8>> = (bytes = "vec", repeated, tag = "5");
    }

    WatchRequest {
        request: Option<Watching> = (oneof = "Watching", tags = "1, 2");
    }

    WatchCreate {
        key: Vec<u8> = (bytes = "vec", tag = "1");
        /// With it, all keys from the first up to this.
        range_end: Vec<u8> = (bytes = "vec", tag = "2");
        start_revision: i64 = (int64, tag = "3");
        /// What is not told: 0 are puts, 1 are deletes.
        filters: Vec<i32> = (int32, repeated, tag = "5");
        /// Chosen by us, so that nothing must wait for an answer.
        watch_id: i64 = (int64, tag = "7");
    }

    WatchCancel {
        watch_id: i64 = (int64, tag = "1");
    }

    WatchResponse {
        header: Option<Header> = (message, optional, tag = "1");
        watch_id: i64 = (int64, tag = "2");
        created: bool = (bool, tag = "3");
        canceled: bool = (bool, tag = "4");
        compact_revision: i64 = (int64, tag = "5");
        cancel_reason: String = (string, tag = "6");
        events: Vec<Event> = (message, repeated, tag = "11");
    }

    Event {
        /// 0 is a put, 1 a delete.
        kind: i32 = (int32, tag = "1");
        kv: Option<KeyValue> = (message, optional, tag = "2");
    }

    AuthenticateRequest {
        name: String = (string, tag = "1");
        password: String = (string, tag = "2");
    }

    AuthenticateResponse {
        token: String = (string, tag = "2");
    }

    StatusRequest {}

    StatusResponse {
        version: String = (string, tag = "2");
    }
}

/// A request of the API, or of one of its streams.
pub(crate) trait Rpc: Message + Clone + 'static {
    const PATH: &'static str;
    type Response: Message + Default + 'static;
}

/// Requests, each with its response and the path of its method.
macro_rules! methods {
    ($($request:ident -> $response:ty = $path:literal;)*) => {$(
        impl Rpc for $request {
            const PATH: &'static str = concat!("/etcdserverpb.", $path);
            type Response = $response;
        }
    )*};
}

methods! {
    AuthenticateRequest -> AuthenticateResponse = "Auth/Authenticate";
    LeaseGrantRequest -> LeaseResponse = "Lease/LeaseGrant";
    LeaseKeepAliveRequest -> LeaseResponse = "Lease/LeaseKeepAlive";
    LeaseKeysRequest -> LeaseKeysResponse = "Lease/LeaseTimeToLive";
    LeaseRevokeRequest -> () = "Lease/LeaseRevoke";
    RangeRequest -> RangeResponse = "KV/Range";
    StatusRequest -> StatusResponse = "Maintenance/Status";
    TxnRequest -> TxnResponse = "KV/Txn";
    WatchRequest -> WatchResponse = "Watch/Watch";
}

/// Of a range's `sort_order`.
pub(crate) const ASCEND: i32 = 1;
/// Of a range's `sort_order`.
pub(crate) const DESCEND: i32 = 2;
/// Of a range's `sort_target`.
pub(crate) const BY_CREATE: i32 = 2;

#[derive(Clone, Copy, PartialEq, Oneof)]
pub(crate) enum With {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Do {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
    #[prost(message, tag = "4")]
    Txn(TxnRequest),
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Done {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteResponse),
    #[prost(message, tag = "4")]
    Txn(TxnResponse),
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Watching {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}
