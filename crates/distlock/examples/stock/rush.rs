//! One rush: a buyer that is stopped, a wave of buyers, the stopped one again, another wave.

use std::fmt;
use std::time::Duration;

use distlock::backend::Clock;
use distlock::{Connect, Locks};
use tokio::task::JoinSet;

use crate::shop::{Shop, Trouble};
use crate::sleeper::Sleeper;
use crate::way::{Bought, Pause, Way, buy};

/// How long a buyer's lock outlives it; they are quick, and renewed.
const TTL: Duration = Duration::from_secs(10);

/// What to do.
pub(crate) struct Plan<'a> {
    pub(crate) database: &'a str,
    pub(crate) locks: &'a str,
    pub(crate) way: Way,
    pub(crate) items: u32,
    /// In each of the two waves.
    pub(crate) buyers: u32,
    /// How many of them at a time.
    pub(crate) width: u32,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) database: &'static str,
    pub(crate) way: Way,
    pub(crate) sold: i64,
    pub(crate) oversold: i64,
    pub(crate) refused: i64,
    /// What the stopped buyer got.
    pub(crate) sleeper: Bought,
    /// Buyers a second in the first wave, once the first of them was served.
    pub(crate) per_second: f64,
}

impl Row {
    pub(crate) const HEAD: &'static str = "\
database    way                     sold  oversold  refused  buyers/s  the stopped buyer";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { database, way, sold, oversold, refused, sleeper, per_second } = self;
        write!(f, "{database:<10}  {way:<22}  {sold:>4}  {oversold:>8}  {refused:>7}  ")?;
        let sleeper = match sleeper {
            Bought::Yes => "bought",
            Bought::SoldOut => "found nothing left",
            Bought::Stale => "was refused by the fence",
            Bought::Conflict => "gave up",
        };
        write!(f, "{per_second:>8.0}  {sleeper}")
    }
}

/// Runs it.
pub(crate) async fn rush(plan: &Plan<'_>) -> Result<Row, Trouble> {
    let shop = Shop::open(plan.database).await?;
    let locks = Locks::options().connect(plan.locks).await?;
    shop.prepare(i64::from(plan.items)).await?;

    let sleeper = Sleeper::start(plan).await?;
    let per_second = wave(plan, &shop, &locks).await?;
    let sleeper = sleeper.wake().await?;
    wave(plan, &shop, &locks).await?;

    let sold = shop.sold().await?;
    let asked = i64::from(plan.buyers) * 2 + 1;
    let oversold = (sold - i64::from(plan.items)).max(0);
    let (database, way) = (shop.name(), plan.way);
    Ok(Row { database, way, sold, oversold, refused: asked - sold, sleeper, per_second })
}

/// All buyers, some at a time: how many a second, from when the first was served.
async fn wave(plan: &Plan<'_>, shop: &Shop, locks: &Locks) -> Result<f64, Trouble> {
    let clock = Clock::system();
    let mut at_the_counter = JoinSet::new();
    let (mut waiting, mut served, mut first) = (plan.buyers, 0, None);
    loop {
        while waiting > 0 && at_the_counter.len() < plan.width as usize {
            let (way, shop, locks) = (plan.way, shop.clone(), locks.clone());
            at_the_counter
                .spawn(async move { buy(way, &shop, &locks, TTL, Pause::default()).await });
            waiting -= 1;
        }
        let Some(done) = at_the_counter.join_next().await else { break };
        done??;
        served += 1;
        first.get_or_insert(clock.now());
    }
    let took = clock.now().since(first.unwrap_or(clock.now())).as_secs_f64();
    Ok(f64::from(served - 1) / took.max(1e-6))
}
