//! A holder pauses past its TTL; the next one writes; the first goes on and writes, too.

use distlock::capability::Expiry;

use super::{Expected, Story, clean, control, story};
use crate::scene::{Scene, Told};
use crate::stores::Store;

const A: usize = 0;
const B: usize = 1;

pub(super) const STORY: Story = Story {
    id: "pause",
    title: "The holder pauses past its TTL",
    teaches: "No lease protects a write whose holder looked at its lock and was then stopped; a \
              resource that checks tokens refuses it.",
    about: &["redis", "sqlite", "postgres"],
    acts: &[
        story(4, clean, |scene| Box::pin(tell(scene, true))),
        control("unfenced", 4, unfenced, |scene| Box::pin(tell(scene, false))),
    ],
};

/// The younger holder's write is undone by the older one's, which nobody refuses.
fn unfenced(store: Store) -> Option<Expected> {
    // A stopped process keeps the kernel's lock, and the next one waits for it.
    (store.name != "file").then_some(Expected::Violates(&["C3", "C5"]))
}

async fn tell(scene: &mut Scene, fenced: bool) -> Told {
    scene.clients(2).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    let next = scene.asks(B, &lock).await;
    let write = scene.is_about_to_write(A, &lock, fenced, scene.ttl).await?;
    let pause = scene.pauses(A);
    if scene.place.capability().expiry == Expiry::WithProcess {
        scene.passes(scene.ttl * 2).await;
        scene.resumes(A, pause);
        let first = scene.wrote(A, write).await;
        scene.releases(A, &lock).await;
        scene.granted(B, next).await?;
        let second = scene.writes(B, &lock, fenced).await?;
        scene.goes_home().await;
        return match (first, second) {
            (true, true) => Ok("the stopped holder kept the lock, and the next one waited".into()),
            _ => Err("a write was refused although nobody else had the lock".to_owned().into()),
        };
    }
    scene.granted(B, next).await?;
    let younger = scene.writes(B, &lock, fenced).await?;
    scene.releases(B, &lock).await;
    scene.resumes(A, pause);
    let older = scene.wrote(A, write).await;
    let believes = scene.believes(A, &lock).await;
    scene.goes_home().await;
    if !younger {
        return Err("the younger holder's write was refused".to_owned().into());
    }
    if believes {
        scene.finds("C2", "the paused holder still believed in its lock when it went on");
    }
    Ok(match older {
        true => "the paused holder wrote over the next one's work".into(),
        false => "the paused holder's write was refused, and it knew that its lock was lost".into(),
    })
}
