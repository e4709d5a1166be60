//! A2: RabbitMQ has an alarm and takes no messages.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::FutureExt as _;
use testkit::{consume::Broker, servers::Flavor};

use super::between::{alive, never_said, progress, readiness, recovery};
use crate::{
    arena::Arena,
    row::{Case, Row},
};

/// The time limit from the end of the alarm to readiness.
const RECOVERED: Duration = Duration::from_secs(20);

/// The longest alarm, in milliseconds.
const LONGEST: u64 = 120_000;

/// The commands that raise an alarm and end it.
type Alarm = ([&'static str; 2], [&'static str; 2]);

const MEMORY: Alarm = (["set_vm_memory_high_watermark", "0.00001"], ["set_vm_memory_high_watermark", "0.6"]);
const DISK: Alarm = (["set_disk_free_limit", "9000GB"], ["set_disk_free_limit", "1MB"]);

pub(super) fn row() -> Row {
    let case = |name, alarm, least, flavor| {
        let case = Case::new(name, move |arena| blocked(arena, alarm, least).boxed());
        case.on(flavor, Broker::RabbitMq).own_broker().told("Sink rabbitmq takes nothing from")
    };
    Row {
        id: "A2",
        fault: "memory or disk alarm of RabbitMQ: connections are blocked",
        shows: "no call outlives its deadline; /readyz says broker_blocked",
        cases: vec![
            case("memory, from 5 s", MEMORY, 5000, Flavor::MySql),
            case("disk, from 5 s", DISK, 5000, Flavor::MariaDb).short(),
            case("memory, from 30 s", MEMORY, 30_000, Flavor::MySql),
        ],
    }
}

/// Raises the memory alarm for this duration.
pub(super) async fn alarm(arena: &mut Arena, time: Duration) -> Result<()> {
    arena.strike().await?;
    arena.ground.broker()?.rabbitmqctl(&MEMORY.0).await?;
    tokio::time::sleep(time).await;
    arena.ground.broker()?.rabbitmqctl(&MEMORY.1).await?;
    arena.recovered(Instant::now(), RECOVERED).await
}

async fn blocked(arena: &mut Arena, (raise, end): Alarm, least: u64) -> Result<()> {
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    arena.strike().await?;
    arena.ground.broker()?.rabbitmqctl(&raise).await?;
    readiness(arena, "the alarm to be named", |status, body| status == 200 && body.contains("broker_blocked")).await?;
    let lasts = arena.lasting(least..LONGEST, least);
    tokio::time::sleep(lasts).await;
    // Relays, consumers and servers together need both processors for the load's own rate: 500 messages a second.
    arena.drains_within += lasts;
    arena.told().await?;
    alive(arena).await?;
    arena.ground.broker()?.rabbitmqctl(&end).await?;
    recovery(arena, RECOVERED).await?;
    progress(arena, 50.0).await?;
    arena.duplicates_are_announced();
    never_said(&arena.relays, "did not keep its deadline")
}
