//! Random faults under random work.

use std::time::Duration;

use distlock::Error;
use distlock::backend::Clock;
use distlock::capability::Family;
use distlock_lab::record::Kind;
use distlock_testkit::ProxiedRoute;

use crate::client::Pending;
use crate::dice::Dice;
use crate::place::Place;
use crate::run::Title;
use crate::scene::{
    CLOCK_BACK, CLOCK_FORWARD, CUT, FAILOVER, LOST_ANSWERS, RESET, SERVER_KILLED, SERVER_PAUSED,
    SERVER_RESTARTED, Scene, Told, Trouble,
};
use crate::stores::Group;
use crate::stories::Expected;

/// A round's title.
pub(crate) fn title(round: u32, seed: u64) -> Title<'static> {
    Title {
        story: "random",
        act: "",
        kind: Kind::Random,
        round,
        seed,
        expected: Expected::Clean,
        ttl: Duration::from_secs(2),
    }
}

/// Something to be done to somebody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Blow {
    PauseClient,
    KillClient,
    Cut,
    LoseAnswers,
    HoldAnswers,
    Delay,
    Reset,
    KillServer,
    RestartServer,
    PauseServer,
    Failover,
    ClockForward,
    ClockBack,
}

/// When, for how long, and to whom.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Planned {
    blow: Blow,
    after: Duration,
    lasts: Duration,
    /// Whoever holds this lock, or else this client.
    lock: usize,
    holder: bool,
    victim: usize,
    /// By how much clocks and answers are moved.
    by: Duration,
}

/// All that a seed decides.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    clients: usize,
    locks: usize,
    blows: Vec<Planned>,
}

/// What can be done at a store.
fn blows(place: &Place) -> Vec<Blow> {
    let mut all = vec![Blow::PauseClient, Blow::PauseClient, Blow::KillClient];
    if place.has_roads() {
        all.extend([Blow::Cut, Blow::LoseAnswers, Blow::HoldAnswers, Blow::Delay, Blow::Reset]);
    }
    match place.store.group {
        Group::Files => {}
        Group::Replicated => all.extend([Blow::Failover, Blow::PauseServer]),
        _ if place.store.is_ensemble() => all.extend([Blow::Failover, Blow::PauseServer]),
        _ => all.extend([Blow::KillServer, Blow::RestartServer, Blow::PauseServer]),
    }
    if place.clocks() > 0 {
        all.extend([Blow::ClockForward, Blow::ClockBack]);
    }
    all
}

impl Plan {
    fn roll(seed: u64, blows: &[Blow], ttl: Duration) -> Self {
        let mut dice = Dice::new(seed);
        let clients = usize::try_from(3 + dice.below(3)).unwrap_or(3);
        let locks = usize::try_from(1 + dice.below(2)).unwrap_or(1);
        let mut planned: Vec<Planned> = Vec::new();
        for _ in 0..1 + dice.below(3) {
            let blow = *dice.one(blows);
            // One failover is enough for a round, and so is one step of a clock.
            let again = |b: Blow| planned.iter().any(|p| p.blow == b);
            if matches!(blow, Blow::Failover | Blow::ClockForward | Blow::ClockBack) && again(blow)
            {
                continue;
            }
            // A little less than a TTL, or rather more.
            let tenth = u64::try_from(ttl.as_millis() / 10).unwrap_or(1);
            planned.push(Planned {
                blow,
                after: dice.millis(150, 700),
                lasts: dice.millis(tenth, tenth * 15),
                lock: usize::try_from(dice.below(locks as u64)).unwrap_or(0),
                holder: dice.percent(66),
                victim: usize::try_from(dice.below(clients as u64)).unwrap_or(0),
                by: dice.millis(300, 1_500),
            });
        }
        Self { clients, locks, blows: planned }
    }
}

/// One round.
pub(crate) async fn round(scene: &mut Scene, seed: u64) -> Told {
    scene.unplanned = true;
    let plan = Plan::roll(seed, &blows(&scene.place), scene.ttl);
    scene.clients_by_road(plan.clients).await?;
    let locks: Vec<String> = (0..plan.locks).map(|i| scene.lock(&format!("lock{i}"))).collect();
    let mut works = scene.work(seed, &locks).await?;
    for blow in &plan.blows {
        scene.passes(blow.after).await;
        strike(scene, blow, seed, &locks, &mut works).await?;
    }
    scene.passes(Duration::from_millis(200)).await;
    scene.place.clone().mend().await?;
    scene.everybody_is_served(&works).await;
    scene.stops(works).await;
    scene.goes_home().await;
    for left in scene.place.clone().endless().await? {
        scene.finds("C7", format!("{left} was left and never ends"));
    }
    let names: Vec<_> = plan.blows.iter().map(|b| format!("{:?}", b.blow)).collect();
    Ok(format!("{} clients, {} locks: {}", plan.clients, plan.locks, names.join(", ")))
}

/// Who holds a lock, if that can be seen.
async fn holder(scene: &Scene, lock: &str) -> Option<usize> {
    let look = scene.place.locks.show(lock);
    let shown = Clock::system().timeout(Duration::from_millis(500), look).await?.ok()??;
    let label = shown.holds.first()?.holder.label.to_string();
    scene.clients.iter().position(|c| c.alive && c.pid.to_string() == label)
}

async fn strike(
    scene: &mut Scene,
    planned: &Planned,
    seed: u64,
    locks: &[String],
    works: &mut [Pending],
) -> Result<(), Trouble> {
    let lock = &locks[planned.lock];
    let who = match planned.holder {
        true => holder(scene, lock).await.unwrap_or(planned.victim),
        false => planned.victim,
    };
    let lasts = planned.lasts;
    match planned.blow {
        Blow::PauseClient => {
            let pause = scene.pauses(who);
            scene.passes(lasts).await;
            scene.resumes(who, pause);
        }
        Blow::KillClient => {
            scene.kills(who).await;
            scene.replaces(who).await;
            works[who] = scene.works(who, seed ^ 1, locks).await;
        }
        Blow::Cut => on_the_road(scene, who, CUT, lasts, ProxiedRoute::cut).await,
        Blow::LoseAnswers => {
            on_the_road(scene, who, LOST_ANSWERS, lasts, ProxiedRoute::drop_answers).await;
        }
        Blow::HoldAnswers => {
            let fault = scene.on_the_road(who, "held answers", ProxiedRoute::hold_answers);
            scene.passes(lasts).await;
            if let Some(road) = &scene.clients[who].road {
                road.heal(); // they arrive, late
            }
            fault.into_iter().for_each(|fault| scene.over(fault));
        }
        Blow::Delay => {
            let by = planned.by / 4;
            let fault = scene.on_the_road(who, "delay", |road| road.delay(by));
            scene.passes(lasts).await;
            if let Some(road) = &scene.clients[who].road {
                road.heal();
            }
            fault.into_iter().for_each(|fault| scene.over(fault));
        }
        Blow::Reset => {
            if let Some(fault) = scene.on_the_road(who, RESET, ProxiedRoute::reset) {
                scene.over(fault);
            }
        }
        Blow::KillServer | Blow::RestartServer | Blow::PauseServer => {
            at_a_server(scene, planned, lock).await?;
        }
        Blow::Failover => {
            let fault = scene.strikes(FAILOVER, "the primary");
            let place = scene.place.clone();
            place.fail_over(lock).await?;
            place.mend().await?;
            scene.over(fault);
        }
        Blow::ClockForward | Blow::ClockBack => step_a_clock(scene, planned),
    }
    Ok(())
}

async fn on_the_road(
    scene: &mut Scene,
    who: usize,
    what: &str,
    lasts: Duration,
    act: impl Fn(&ProxiedRoute),
) {
    let fault = scene.on_the_road(who, what, act);
    scene.passes(lasts).await;
    scene.heals(who, fault);
}

async fn at_a_server(scene: &mut Scene, planned: &Planned, lock: &str) -> Result<(), Error> {
    let place = scene.place.clone();
    let nodes = place.nodes();
    let at = match place.store.family {
        Family::Quorum => planned.victim % nodes.len(),
        _ => place.serving(lock).await?,
    };
    let (server, whom) = (nodes[at], format!("server {at}"));
    match planned.blow {
        Blow::PauseServer => {
            let fault = scene.strikes(SERVER_PAUSED, &whom);
            server.pause();
            // A cluster or a set of sentinels would name another before long.
            let lasts = match place.store.group {
                Group::Replicated => planned.lasts.min(Duration::from_millis(600)),
                _ => planned.lasts,
            };
            scene.passes(lasts).await;
            server.resume();
            scene.over(fault);
        }
        Blow::RestartServer => {
            let fault = scene.strikes(SERVER_RESTARTED, &whom);
            server.restart().await?;
            scene.over(fault);
        }
        _ => {
            let fault = scene.strikes(SERVER_KILLED, &whom);
            server.kill();
            scene.passes(planned.lasts.min(Duration::from_secs(1))).await;
            server.again().await?;
            scene.over(fault);
        }
    }
    Ok(())
}

fn step_a_clock(scene: &mut Scene, planned: &Planned) {
    let place = scene.place.clone();
    let Some(clock) = place.clock(planned.victim % place.clocks().max(1)) else { return };
    if planned.blow == Blow::ClockForward {
        let fault = scene.strikes(CLOCK_FORWARD, "a server");
        clock.forward(planned.by * 20);
        scene.over(fault);
    } else {
        let fault = scene.strikes(CLOCK_BACK, "a server");
        clock.back(planned.by);
        scene.over(fault);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        let blows = [Blow::PauseClient, Blow::KillClient, Blow::Cut, Blow::ClockBack];
        let roll = |seed| Plan::roll(seed, &blows, Duration::from_secs(2));
        assert_eq!(roll(7), roll(7));
        assert!((0..50).any(|seed| roll(seed) != roll(seed + 1)));
        assert!((0..50).all(|seed| !roll(seed).blows.is_empty()));
    }
}
