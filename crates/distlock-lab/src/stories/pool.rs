//! More locks are wanted than there are connections for.

use super::{Expected, Story, story};
use crate::scene::{Scene, Told, Trouble};
use crate::stores::{Group, Store};

const A: usize = 0;
const B: usize = 1;
const ROOM: usize = 3;

pub(super) const STORY: Story = Story {
    id: "pool",
    title: "Every connection is in use",
    teaches: "A lock that is tied to a connection needs one: when all are in use, the next is refused at \
              once and in words, what is held stays held, and a release makes room.",
    about: &["postgres-advisory", "mysql-row-lock"],
    acts: &[story(12, sessions, |scene| Box::pin(tell(scene)))],
};

fn sessions(store: Store) -> Option<Expected> {
    let session = store.family == distlock::capability::Family::Session;
    (session && store.group != Group::Files).then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    let url = format!("{}&sessions={ROOM}", scene.place.url());
    scene.client(None, Some(&url)).await?;
    scene.client(None, None).await?;
    for client in &mut scene.clients {
        client.ready().await;
    }
    let locks: Vec<String> = (0..=ROOM).map(|n| scene.lock(&format!("lock{n}"))).collect();
    for lock in &locks[..ROOM] {
        scene.takes(A, lock).await?;
    }
    let asked = scene.asks(A, &locks[ROOM]).await;
    let refused = match scene.granted(A, asked).await {
        Ok(_) => return Err(Trouble("there was room for one more than was said".to_owned())),
        Err(Trouble(why)) => why,
    };
    // Others have connections of their own.
    scene.takes(B, &locks[ROOM]).await?;
    scene.releases(B, &locks[ROOM]).await;
    for lock in &locks[..ROOM] {
        if !scene.believes(A, lock).await {
            scene.finds("C6", "a lock was lost because there was no room for another");
        }
    }
    scene.releases(A, &locks[0]).await;
    scene.insists(A, &locks[ROOM]).await;
    scene.goes_home().await;
    let why = refused.rsplit_once(": ").map_or(refused.as_str(), |(_, why)| why);
    Ok(format!("the fourth was refused ({why}), the others kept, and a release made room"))
}
