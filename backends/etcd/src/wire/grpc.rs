//! One gRPC call (unary or stream) to one member, and its codec.

use std::marker::PhantomData;

use futures_util::Stream;
use http::uri::PathAndQuery;
use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::members::Pick;
use super::proto::Rpc;

/// Listings of many locks come in pages of a few megabytes.
const LARGEST: usize = 64 << 20;
/// Our messages have some hundred bytes: the usual buffers of eight kilobytes each way would be most of
/// what a crowd of waiters costs.
const BUFFER: usize = 512;
const YIELD: usize = 32 * 1024;

/// A call with one answer.
pub(crate) async fn unary<Q: Rpc>(
    pick: &Pick,
    request: Request<Encoded<Q>>,
) -> Result<Q::Response, Status> {
    let (mut grpc, path) = (ready(pick).await?, PathAndQuery::from_static(Q::PATH));
    Ok(grpc.unary(request, path, SmallBuffers::default()).await?.into_inner())
}

/// Opens a stream both ways.
pub(crate) async fn stream<Q: Rpc>(
    pick: &Pick,
    requests: Request<impl Stream<Item = Q> + Send + 'static>,
) -> Result<Streaming<Q::Response>, Status> {
    let (mut grpc, path) = (ready(pick).await?, PathAndQuery::from_static(Q::PATH));
    Ok(grpc.streaming(requests, path, SmallBuffers::default()).await?.into_inner())
}

async fn ready(pick: &Pick) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(pick.channel.clone()).max_decoding_message_size(LARGEST);
    grpc.ready().await.map_err(|e| Status::from_error(Box::new(e)))?;
    Ok(grpc)
}

/// The codec of all calls, with buffers as small as our messages.
struct SmallBuffers<Q, R>(PhantomData<(Q, R)>);

impl<Q, R> Default for SmallBuffers<Q, R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Q, R> Codec for SmallBuffers<Q, R>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    type Encode = Q;
    type Decode = R;
    type Encoder = ProstEncoder<Q>;
    type Decoder = ProstDecoder<R>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER, YIELD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER, YIELD))
    }
}

/// A message as bytes, encoded once however often it is sent.
#[derive(Clone)]
pub(crate) struct Encoded<Q>(Bytes, PhantomData<Q>);

impl<Q: Message> Encoded<Q> {
    pub(crate) fn of(message: &Q) -> Self {
        Self(message.encode_to_vec().into(), PhantomData)
    }
}

impl<Q: Message> Message for Encoded<Q> {
    fn encode_raw(&self, to: &mut impl BufMut) {
        to.put(&*self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    /// Never decoded: it is only sent.
    fn merge_field(
        &mut self,
        _: u32,
        _: WireType,
        _: &mut impl Buf,
        _: DecodeContext,
    ) -> Result<(), DecodeError> {
        Ok(())
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
