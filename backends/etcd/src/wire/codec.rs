//! Messages to bytes and back, in buffers that fit them: ours have some hundred bytes, and the usual
//! eight kilobytes each way for every call would be most of what a crowd of waiters costs.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

const BUFFER: usize = 512;
const YIELD: usize = 32 * 1024;

/// The codec of all our calls.
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
        ProstCodec::<Q, R>::raw_encoder(BufferSettings::new(BUFFER, YIELD))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<Q, R>::raw_decoder(BufferSettings::new(BUFFER, YIELD))
    }
}
