//! The scripts against the specification, in held time: the scripts read it from a key.

mod cost;
mod limits;
mod scene;

use distlock_testkit::differential;
use scene::Scene;

#[test]
fn the_scripts_answer_as_the_specification_does() {
    differential::answers_as_the_specification(Scene::new, 700);
}

#[tokio::test]
async fn a_full_memory_drops_what_is_over_first() {
    differential::a_full_memory_drops_what_is_over_first(Scene::new().await).await;
}

#[tokio::test]
async fn a_second_revoke_is_told_too() {
    differential::a_second_revoke_is_told_too(Scene::new().await).await;
}

#[tokio::test]
async fn tokens_rise_though_the_clock_falls() {
    differential::tokens_rise_though_the_clock_falls(Scene::new().await).await;
}

#[tokio::test]
async fn who_is_passed_over_keeps_its_place() {
    differential::who_is_passed_over_keeps_its_place(Scene::new().await).await;
}
