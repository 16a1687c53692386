//! Many clients at few rows of a database.

use std::time::Duration;

use super::{Expected, Story, story};
use crate::scene::{Scene, Told};
use crate::stores::{Group, Store};

const CLIENTS: usize = 8;

pub(super) const STORY: Story = Story {
    id: "deadlock-storm",
    title: "A storm of transactions on three rows",
    teaches: "Moves that lock one row first never wait for each other in a circle: no transaction is \
              the victim of a deadlock, and everybody is served.",
    about: &["mysql", "mysql-row-lock", "postgres"],
    acts: &[story(6, databases, |scene| Box::pin(tell(scene)))],
};

fn databases(store: Store) -> Option<Expected> {
    matches!(store.group, Group::Mysql | Group::Postgres).then_some(Expected::Clean)
}

async fn tell(scene: &mut Scene) -> Told {
    scene.clients(CLIENTS).await?;
    let locks = [scene.lock("one"), scene.lock("two"), scene.lock("three")];
    let ttl = scene.ttl.as_millis();
    let mut races = Vec::new();
    for who in 0..CLIENTS {
        for lock in &locks {
            races.push((who, scene.clients[who].begin(&format!("race {lock} {ttl} 0")).await));
        }
    }
    scene.passes(Duration::from_secs(3)).await;
    for client in &mut scene.clients {
        client.begin("stop").await;
    }
    let (mut rounds, mut failed) = (0, 0);
    for (who, race) in races {
        let said = scene.clients[who].answer(race).await;
        let mut numbers = said.split(' ').skip(1).filter_map(|n| n.parse::<u32>().ok());
        rounds += numbers.next().unwrap_or(0);
        failed += numbers.next().unwrap_or(0);
    }
    if failed > 0 {
        scene.finds("C6", format!("{failed} acquires failed although nothing was wrong"));
    }
    scene.goes_home().await;
    Ok(format!("{rounds} holds by {CLIENTS} clients, {failed} failures"))
}
