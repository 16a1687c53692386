//! One command to a redis and its answer, without a client crate.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use distlock_core::Clock;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};

/// A test that asks a dead server is to go on soon.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a redis answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `+OK` and the like.
    Status(String),
    /// What follows the `-`, code included.
    Error(String),
    /// A number.
    Int(i64),
    /// A string; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Nothing.
    Nil,
    /// Several.
    List(Vec<Reply>),
}

impl Reply {
    /// Whether it is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The members of a list; nothing when it is none.
    #[must_use]
    pub fn list(&self) -> &[Reply] {
        if let Self::List(all) = self { all } else { &[] }
    }

    /// The number it is, also when it came as text.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Text(t) => t.parse().ok(),
            _ => None,
        }
    }

    /// The error as an error, anything else as it is.
    ///
    /// # Errors
    /// When the server answered one.
    pub fn ok(self) -> io::Result<Self> {
        match self {
            Self::Error(e) => Err(io::Error::other(e)),
            other => Ok(other),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(t) | Self::Text(t) => f.write_str(t),
            Self::Error(t) => write!(f, "-{t}"),
            Self::Int(n) => write!(f, "{n}"),
            Self::Nil => f.write_str("nil"),
            Self::List(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", all.join(" "))
            }
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// One connection, for commands that belong together (`AUTH`, `ASKING`, `MULTI`).
pub struct Wire(BufReader<Box<dyn Stream>>);

impl Wire {
    /// Connects to a port.
    ///
    /// # Errors
    /// When nobody listens.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn to(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(Box::new(stream))))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// When nobody listens.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn to_socket(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self(BufReader::new(Box::new(UnixStream::connect(path).await?))))
    }

    /// Sends a command and reads its answer.
    ///
    /// # Errors
    /// When the connection fails, when nothing comes within five seconds, or what comes is not
    /// an answer. An error of the server is a [`Reply::Error`].
    ///
    /// # Cancel safety
    /// The command may have taken effect, and the connection is of no use any more.
    pub async fn call<A: AsRef<[u8]>>(&mut self, command: &[A]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", command.len()).into_bytes();
        for word in command.iter().map(AsRef::as_ref) {
            request.extend(format!("${}\r\n", word.len()).into_bytes());
            request.extend(word);
            request.extend(b"\r\n");
        }
        let ask = async {
            self.0.write_all(&request).await?;
            self.0.flush().await?;
            read(&mut self.0).await
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer within five seconds");
        Clock::system().timeout(PATIENCE, ask).await.ok_or_else(late)?
    }

    /// Every key of this connection's database, and what is left of it in milliseconds; negative
    /// for one without an end.
    ///
    /// # Errors
    /// As [`Wire::call`], and when the server refuses.
    ///
    /// # Cancel safety
    /// The connection is of no use any more.
    pub async fn keys(&mut self) -> io::Result<Vec<(String, i64)>> {
        let script = "local out = {} for _, k in ipairs(redis.call('KEYS', '*')) do \
                      out[#out + 1] = k out[#out + 1] = redis.call('PTTL', k) end return out";
        let all = self.call(&["EVAL", script, "0"]).await?.ok()?;
        let left = |reply: &Reply| reply.int().ok_or_else(|| io::Error::other("not a number"));
        all.list().chunks_exact(2).map(|pair| Ok((pair[0].to_string(), left(&pair[1])?))).collect()
    }

    /// Every key of this connection's database, and whether it ends by itself: what the laws ask
    /// of [`Suite::leaves`](crate::Suite::leaves).
    ///
    /// # Errors
    /// As [`Wire::keys`].
    ///
    /// # Cancel safety
    /// The connection is of no use any more.
    pub async fn leftovers(&mut self) -> io::Result<Vec<(String, bool)>> {
        Ok(self.keys().await?.into_iter().map(|(key, left)| (key, left >= 0)).collect())
    }

    /// The next answer without a question: what a subscription is told.
    ///
    /// # Errors
    /// As [`Wire::call`], without its limit.
    ///
    /// # Cancel safety
    /// The connection is of no use any more when an answer was half read.
    pub async fn next(&mut self) -> io::Result<Reply> {
        read(&mut self.0).await
    }
}

/// Sends one command over a connection of its own and reads its answer.
///
/// # Errors
/// As [`Wire::to`] and [`Wire::call`].
///
/// # Cancel safety
/// The command may have taken effect.
pub async fn raw<A: AsRef<[u8]>>(addr: SocketAddr, command: &[A]) -> io::Result<Reply> {
    Wire::to(addr).await?.call(command).await
}

type Reading<'a> = Pin<Box<dyn Future<Output = io::Result<Reply>> + Send + 'a>>;

fn read(from: &mut BufReader<Box<dyn Stream>>) -> Reading<'_> {
    Box::pin(async move {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line).await?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let odd = || io::Error::new(io::ErrorKind::InvalidData, format!("not RESP: {line:?}"));
        let text = line.strip_suffix("\r\n").ok_or_else(odd)?;
        let (kind, rest) = text.split_at_checked(1).ok_or_else(odd)?;
        let number = || rest.parse::<i64>().map_err(|_| odd());
        Ok(match kind {
            "+" => Reply::Status(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(number()?),
            "$" => {
                let Ok(len) = usize::try_from(number()?) else { return Ok(Reply::Nil) };
                let mut bytes = vec![0; len + 2];
                from.read_exact(&mut bytes).await?;
                Reply::Text(String::from_utf8_lossy(&bytes[..len]).into_owned())
            }
            "*" => {
                let Ok(len) = usize::try_from(number()?) else { return Ok(Reply::Nil) };
                let mut all = Vec::new();
                for _ in 0..len {
                    all.push(read(from).await?);
                }
                Reply::List(all)
            }
            _ => return Err(odd()),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::Redis;
    use super::*;

    #[tokio::test]
    async fn every_kind_of_answer_is_read_from_a_real_redis() {
        let redis = Redis::new().start().await.unwrap();
        let mut wire = Wire::to(redis.addr()).await.unwrap();
        let ok = Reply::Status("OK".into());
        assert_eq!(wire.call(&["SET", "a key", "line\r\nline"]).await.unwrap(), ok);
        let text = Reply::Text("line\r\nline".into());
        assert_eq!(wire.call(&["GET", "a key"]).await.unwrap(), text);
        assert_eq!(wire.call(&["GET", "none"]).await.unwrap(), Reply::Nil);
        assert_eq!(wire.call(&["INCR", "n"]).await.unwrap(), Reply::Int(1));
        let e = wire.call(&["INCR", "a key"]).await.unwrap();
        assert!(e.is_error() && e.to_string().starts_with("-ERR value is not"), "{e}");
        assert!(e.ok().is_err());
        let nested = "return {1, {'two', false}, {}}";
        let nested = wire.call(&["EVAL", nested, "0"]).await.unwrap();
        assert_eq!(nested.to_string(), "[1 [two nil] []]");
        assert_eq!(nested.list()[0].int(), Some(1));
        assert_eq!(wire.call(&[b"EXISTS".as_slice(), b"n"]).await.unwrap(), Reply::Int(1));
        assert_eq!(raw(redis.addr(), &["GET", "n"]).await.unwrap().int(), Some(1));
    }
}
