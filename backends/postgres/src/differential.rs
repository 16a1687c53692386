//! The functions against the specification, in held time: they read it from a setting.

mod scene;

use distlock_testkit::differential;
use scene::Scene;

#[test]
fn the_functions_answer_as_the_specification_does() {
    differential::answers_as_the_specification(Scene::new, 400);
}

distlock_testkit::differential_examples!(Scene, who_is_passed_over_keeps_its_place);
