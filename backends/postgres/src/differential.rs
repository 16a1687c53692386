//! The functions against the specification, in held time: they read it from a setting.

mod scene;

use distlock_testkit::differential;
use scene::Scene;

#[test]
fn the_functions_answer_as_the_specification_does() {
    differential::answers_as_the_specification(Scene::new, 400);
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

#[tokio::test]
async fn a_crowd_is_served_in_turn() {
    differential::a_crowd_is_served_in_turn(Scene::new().await).await;
}

#[tokio::test]
async fn who_confirms_lets_its_owners_others_in() {
    differential::who_confirms_lets_its_owners_others_in(Scene::new().await).await;
}

#[tokio::test]
async fn a_crowd_with_exceptions() {
    differential::a_crowd_with_exceptions(Scene::new().await).await;
}
