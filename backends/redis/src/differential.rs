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

distlock_testkit::differential_examples!(Scene, who_is_passed_over_keeps_its_place);
