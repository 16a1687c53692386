//! A release is held up on its way and arrives when the lock is already another's.

use super::{Story, clean_where_leases_end, story};
use crate::scene::{Scene, Told};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

pub(super) const STORY: Story = Story {
    id: "late-release",
    title: "A release arrives late",
    teaches: "A release must name the hold it ends: one that comes after the lease is over would \
              otherwise free the next holder's lock.",
    about: &["redis", "sqlite", "mysql"],
    acts: &[story(4, clean_where_leases_end, |scene| Box::pin(tell(scene)))],
};

async fn tell(scene: &mut Scene) -> Told {
    scene.clients_by_road(3).await?;
    let lock = scene.lock("orders");
    scene.takes(A, &lock).await?;
    // Where nothing can stand between, the holder itself is stopped instead.
    let (cut, pause, release) = if scene.place.has_roads() {
        let cut = scene.on_the_road(A, "cut", distlock_testkit::ProxiedRoute::cut);
        (cut, None, Some(scene.clients[A].begin(&format!("release {lock}")).await))
    } else {
        (None, Some(scene.pauses(A)), None)
    };
    scene.takes(B, &lock).await?;
    if let Some(pause) = pause {
        scene.resumes(A, pause);
    }
    if let Some(road) = &scene.clients[A].road {
        road.heal(); // and what was held up arrives now
    }
    let said = match release {
        Some(release) => scene.clients[A].answer(release).await,
        None => scene.releases(A, &lock).await,
    };
    cut.into_iter().for_each(|cut| scene.over(cut));
    scene.writes(A, &lock, true).await.ok();
    let (stolen, _) = scene.tries(C, &lock, std::time::Duration::from_millis(300)).await;
    let kept = scene.believes(B, &lock).await;
    let ends = scene.releases(B, &lock).await;
    scene.goes_home().await;
    if stolen || !kept || ends != "released" {
        scene.finds("C2", format!("the late release ended the next one's hold ({ends})"));
    }
    Ok(format!("the late release was answered {said:?}, and the next holder kept its lock"))
}
