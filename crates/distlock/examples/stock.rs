//! The last items of a shop: many buyers, a stock that nobody else protects, and a fence.
//!
//! `cargo run --package distlock --example stock`

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distlock::{Clock, Error, Kind, Token};

/// A stock that remembers the highest token it has seen and refuses a lower one: what a database
/// does with a fence column.
#[derive(Default)]
struct Stock {
    items: u32,
    fence: Option<Token>,
}

impl Stock {
    fn sell(&mut self, seen: u32, token: Token) -> Result<(), Error> {
        if self.fence.is_some_and(|fence| token < fence) {
            return Err(Error::new(Kind::Lost, format!("token {token} is stale")));
        }
        self.fence = Some(token);
        self.items = seen - 1;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = distlock::connect_default().await?;
    let stock = Arc::new(Mutex::new(Stock { items: 5, fence: None }));
    let shelf = || stock.lock().unwrap_or_else(PoisonError::into_inner);

    let mut buyers = tokio::task::JoinSet::new();
    for buyer in 1..=12 {
        let (locks, stock) = (locks.clone(), stock.clone());
        buyers.spawn(async move {
            let guard = locks.lock("stock/teapot").label(format!("buyer {buyer}")).await?;
            let shelf = || stock.lock().unwrap_or_else(PoisonError::into_inner);
            let seen = shelf().items; // read …
            if seen == 0 {
                return Ok::<bool, Error>(false);
            }
            Clock::system().sleep(Duration::from_millis(2)).await; // … think …
            shelf().sell(seen, guard.token())?; // … write, with the token
            let _ = guard.release().await?;
            Ok(true)
        });
    }
    let mut sold = 0;
    while let Some(bought) = buyers.join_next().await {
        sold +=
            u32::from(bought.map_err(|e| Error::new(Kind::Store, "a buyer failed").because(e))??);
    }
    println!("{sold} of 12 buyers got one, {} left", shelf().items);
    assert_eq!((sold, shelf().items), (5, 0));

    // A buyer that slept through its lease comes back with its old token.
    let old = Token::MIN;
    match shelf().sell(1, old) {
        Err(e) => println!("a sleeper's write is refused: {e}"),
        Ok(()) => println!("the fence is broken"),
    }
    Ok(())
}
