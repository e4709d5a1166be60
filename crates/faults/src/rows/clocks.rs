//! T1: wrong clocks.
//!
//! A service's clock is only in the ids of its messages. It is as wrong as all others where the database's clock is.

use std::sync::Arc;

use anyhow::Result;
use futures_util::FutureExt as _;
use testkit::{clock::Clock, consume::Broker, servers::Flavor};

use super::between::progress;
use crate::{
    arena::{Arena, LEASE, Pace},
    row::{Case, Row},
};

const TWO_HOURS: i64 = 2 * 60 * 60;

pub(super) fn row() -> Row {
    let skewed =
        |name, relays: Skew, consumers: Skew| Case::new(name, move |arena| skewed(arena, relays, consumers).boxed());
    let stepped = |name, steps: &'static [i64]| Case::new(name, move |arena| stepped(arena, steps).boxed()).own_clock();
    Row {
        id: "T1",
        fault: "clocks of relays and consumers two hours off, or 1.1 times as fast; the database's two hours off, or \
                stepped by a minute",
        shows: "order, fence, effects; a step forward ends leases early, which is announced, and one back lengthens \
                them",
        cases: vec![
            skewed("relays ahead", Skew::Ahead(TWO_HOURS), Skew::Ahead(-TWO_HOURS)),
            skewed("relays behind", Skew::Ahead(-TWO_HOURS), Skew::Ahead(TWO_HOURS))
                .on(Flavor::MariaDb, Broker::RabbitMq),
            skewed("faster", Skew::Faster(10), Skew::Faster(10)).short(),
            skewed("slower", Skew::Faster(-10), Skew::Faster(-10)).on(Flavor::MariaDb, Broker::RabbitMq),
            stepped("database two hours off", &[TWO_HOURS, -TWO_HOURS]),
            stepped("database stepped", &[60, 0, -60, 0]).short(),
            stepped("database stepped", &[60, 0, -60, 0]).on(Flavor::MariaDb, Broker::RabbitMq),
        ],
    }
}

/// The error of a clock: by seconds, or in its speed by percent.
#[derive(Debug, Clone, Copy)]
enum Skew {
    Ahead(i64),
    Faster(i64),
}

impl Skew {
    fn clock(self) -> Result<Arc<Clock>> {
        let clock = Clock::new()?;
        match self {
            Self::Ahead(seconds) => clock.ahead(seconds)?,
            Self::Faster(percent) => clock.faster(percent)?,
        }
        Ok(Arc::new(clock))
    }
}

/// A relay is killed as well, and one is frozen for longer than its lease: the fence goes by the database's clock.
async fn skewed(arena: &mut Arena, relays: Skew, consumers: Skew) -> Result<()> {
    let clock = relays.clock()?;
    for (name, value) in clock.variables() {
        arena.settings = arena.settings.clone().env(name, &value);
    }
    arena.clocks.push(clock);
    arena.setup.consumer.clock = Some(consumers.clock()?);
    arena.start().await?;
    let victim = arena.relays.remove(0);
    arena.strike().await?;
    let death = arena.kill(victim).await?;
    arena.taken_over(death.pid, death.at, 2 * LEASE).await?;
    arena.duplicates_are_announced();
    // A frozen relay resumes when another has taken over its claims.
    let frozen = arena.relays.remove(0);
    frozen.pause()?;
    arena.start_relays(1)?;
    arena.taken_over(frozen.pid(), std::time::Instant::now(), 2 * LEASE).await?;
    frozen.resume()?;
    arena.relays.push(frozen);
    progress(arena, 50.0).await
}

/// Steps the database's clock under load. Duplicates are announced: a step forward ends every lease.
async fn stepped(arena: &mut Arena, steps: &[i64]) -> Result<()> {
    arena.start().await?;
    for seconds in steps {
        arena.strike().await?;
        arena.ground.clock()?.ahead(*seconds)?;
        for _ in 0..if arena.setup.pace == Pace::Full { 5 } else { 1 } {
            progress(arena, 50.0).await?;
        }
    }
    arena.duplicates_are_announced();
    Ok(())
}
