//! Messages to bytes and back, in buffers that fit them: ours have some hundred bytes, and the usual
//! eight kilobytes each way for every call would be most of what a crowd of waiters costs.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::{BufMut, Bytes};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

const BUFFER: usize = 512;
const YIELD: usize = 32 * 1024;

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER, YIELD)
}

/// The codec of our streams.
pub(crate) struct Small<Q, R>(PhantomData<(Q, R)>);

impl<Q, R> Default for Small<Q, R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<Q, R> Codec for Small<Q, R>
where
    Q: Message + Send + 'static,
    R: Message + Default + Send + 'static,
{
    type Encode = Q;
    type Decode = R;
    type Encoder = ProstEncoder<Q>;
    type Decoder = ProstDecoder<R>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<Q, R>::raw_encoder(settings())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<Q, R>::raw_decoder(settings())
    }
}

/// The codec of our calls: a question that may be asked several times is bytes already.
pub(crate) struct Ready<R>(PhantomData<R>);

impl<R> Default for Ready<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<R: Message + Default + Send + 'static> Codec for Ready<R> {
    type Encode = Bytes;
    type Decode = R;
    type Encoder = Whole;
    type Decoder = ProstDecoder<R>;

    fn encoder(&mut self) -> Whole {
        Whole
    }

    fn decoder(&mut self) -> ProstDecoder<R> {
        ProstCodec::<(), R>::raw_decoder(settings())
    }
}

/// Sends bytes as they are.
pub(crate) struct Whole;

impl Encoder for Whole {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, question: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(question.len());
        to.put(question);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}
