//! A fenced service over real sockets.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // tests

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{HeaderMap, Request, Response};
use axum::routing::any;
use distlock_fence::http::{FENCING_TOKEN, FenceLayer, SendTokenLayer, set_token};
use distlock_fence::{FenceGate, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tower_layer::Layer;
use tower_service::Service;

fn token(n: u64) -> Token {
    Token::new(n).unwrap()
}

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    addr
}

/// One request on a connection of its own: the status and the whole answer.
async fn ask(to: SocketAddr, method: &str, path: &str, headers: &[&str]) -> (u16, String) {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let headers: String = headers.iter().map(|h| format!("{h}\r\n")).collect();
    let text = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

#[tokio::test]
async fn the_statuses_are_those_of_the_table() {
    let gate = FenceGate::new();
    let at = serve(
        Router::new()
            .route("/{*path}", any(|| async { "done" }))
            .layer(FenceLayer::over(gate.clone())),
    )
    .await;
    let put = |path: &'static str, headers: &'static [&'static str]| ask(at, "PUT", path, headers);
    assert_eq!(put("/a", &[]).await.0, 428);
    for odd in ["x", "-1", "0", "+5", "1.5", "9223372036854775808", "5 6", ""] {
        let header = format!("Fencing-Token: {odd}");
        assert_eq!(ask(at, "PUT", "/a", &[&header]).await.0, 400, "{odd:?}");
    }
    assert_eq!(put("/a", &["fencing-token: 5", "fencing-token: 6"]).await.0, 400);
    assert_eq!(put("/a", &["Fencing-Token: 9223372036854775806"]).await.0, 200);
    assert_eq!(put("/a", &["Fencing-Token: 9223372036854775807"]).await.0, 200);
    let (status, answer) = put("/a", &["Fencing-Token: 9223372036854775806"]).await;
    assert_eq!(status, 412);
    assert!(answer.contains("fencing-highest: 9223372036854775807\r\n"), "{answer}");
    assert_eq!(put("/b", &["Fencing-Token: 1"]).await.0, 200, "another path");
    assert_eq!(ask(at, "GET", "/a", &[]).await.0, 200, "reading needs no token");
    assert_eq!(ask(at, "DELETE", "/a", &[]).await.0, 428);
    // The gate is the caller's: work beside the service keeps to the same marks.
    assert!(gate.enter("/b", token(2)).await.is_ok());
    assert_eq!(put("/b", &["Fencing-Token: 1"]).await.0, 412);
}

/// On one thread, a request that is let in is at work as soon as it has arrived.
#[tokio::test(flavor = "current_thread")]
async fn the_resource_is_closed_until_the_response_is_made() {
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let go = Arc::new(Semaphore::new(0));
    let handler = {
        let (seen, go) = (seen.clone(), go.clone());
        any(move |headers: HeaderMap| async move {
            let token = headers[FENCING_TOKEN].to_str().unwrap().to_owned();
            seen.lock().unwrap().push(format!("in {token}"));
            go.acquire().await.unwrap().forget();
            seen.lock().unwrap().push(format!("out {token}"));
        })
    };
    let fence = FenceLayer::new().resource(move |request| {
        arrived.send(()).unwrap();
        request.uri.path().split('/').nth(1).map(str::to_owned) // /stock/7 is about stock
    });
    let at = serve(Router::new().route("/{*path}", handler).layer(fence)).await;
    let mut asks = Vec::new();
    for (n, path) in [(5, "/stock/7"), (6, "/stock/8")] {
        asks.push(tokio::spawn(async move {
            ask(at, "POST", path, &[&format!("Fencing-Token: {n}")]).await.0
        }));
        arrivals.recv().await.unwrap();
    }
    assert_eq!(*seen.lock().unwrap(), ["in 5"], "6 waits for the end of 5");
    go.add_permits(2);
    for ask in asks {
        assert_eq!(ask.await.unwrap(), 200);
    }
    assert_eq!(*seen.lock().unwrap(), ["in 5", "out 5", "in 6", "out 6"]);
    assert_eq!(ask(at, "POST", "/stock/9", &["Fencing-Token: 5"]).await.0, 412);
}

/// A client of `tower`, as small as can be.
#[derive(Clone)]
struct Client(SocketAddr);

impl Service<Request<()>> for Client {
    type Response = Response<String>;
    type Error = Infallible;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: Request<()>) -> Self::Future {
        let to = self.0;
        Box::pin(async move {
            let headers = request.headers().iter();
            let headers: Vec<String> =
                headers.map(|(k, v)| format!("{k}: {}", v.to_str().unwrap())).collect();
            let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
            let path = request.uri().path();
            let (status, text) = ask(to, request.method().as_str(), path, &headers).await;
            Ok(Response::builder().status(status).body(text).unwrap())
        })
    }
}

#[tokio::test]
async fn the_client_sends_its_token_and_one_only() {
    let router = Router::new().route("/{*path}", any(|| async { "done" }));
    let at = serve(router.layer(FenceLayer::new())).await;
    let mut five = SendTokenLayer::new(token(5)).layer(Client(at));
    let put = || Request::put("/a").body(()).unwrap();
    assert_eq!(five.call(put()).await.unwrap().status(), 200);
    let mut six = put();
    set_token(&mut six, token(5));
    set_token(&mut six, token(6));
    assert_eq!(Client(at).call(six).await.unwrap().status(), 200);
    assert_eq!(five.call(put()).await.unwrap().status(), 412);
}
