//! One owner, several functions: each takes the lock it needs, and the inner one does not wait for
//! the outer.
//!
//! `cargo run --package distlock --example reentrant`

use distlock::{Error, Locks, Owner, Token};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let locks = distlock::connect_default().await?;
    let me = Owner::new(); // a value: it can be handed to another task or process
    let cart = locks.lock("cart").owner(&me).await?;
    let inner = add_item(&locks, &me).await?;
    println!("outer token {}, inner token {inner}: the same hold", cart.token());
    assert_eq!(cart.token(), inner);

    match locks.lock("cart").try_acquire().await? {
        Ok(_) => println!("somebody else got in?"),
        Err(busy) => println!("somebody else: {busy}"),
    }
    Ok(())
}

async fn add_item(locks: &Locks, me: &Owner) -> Result<Token, Error> {
    let cart = locks.lock("cart").owner(me).await?;
    Ok(cart.token())
}
