//! A2: RabbitMQ has an alarm and takes nothing.

use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt as _;
use testkit::{consume::Broker, servers::Flavor};

use super::between::{alive, never_said, progress, readiness, recovery};
use crate::{
    arena::Arena,
    row::{Case, Row},
};

/// From the end of the alarm to readiness.
const RECOVERED: Duration = Duration::from_secs(20);

/// What raises an alarm, and what ends it.
type Alarm = ([&'static str; 2], [&'static str; 2]);

const MEMORY: Alarm = (["set_vm_memory_high_watermark", "0.00001"], ["set_vm_memory_high_watermark", "0.6"]);
const DISK: Alarm = (["set_disk_free_limit", "9000GB"], ["set_disk_free_limit", "1MB"]);

pub(super) fn row() -> Row {
    let case = |name, alarm, seconds, flavor| {
        let case = Case::new(name, move |arena| blocked(arena, alarm, Duration::from_secs(seconds)).boxed());
        case.on(flavor, Broker::RabbitMq).own_broker()
    };
    Row {
        id: "A2",
        fault: "memory or disk alarm of RabbitMQ: connections are blocked",
        shows: "no call outlives its deadline; /readyz says broker_blocked",
        cases: vec![
            case("memory, 5 s", MEMORY, 5, Flavor::MySql),
            case("disk, 5 s", DISK, 5, Flavor::MariaDb).short(),
            case("memory, 30 s", MEMORY, 30, Flavor::MySql),
        ],
    }
}

async fn blocked(arena: &mut Arena, (raise, end): Alarm, time: Duration) -> Result<()> {
    arena.start_relays(3)?;
    arena.start_load().await?;
    arena.working().await?;
    arena.strike().await?;
    arena.ground.broker()?.rabbitmqctl(&raise).await?;
    readiness(arena, "the alarm to be named", |status, body| status == 503 && body.contains("broker_blocked")).await?;
    tokio::time::sleep(time).await;
    alive(arena).await?;
    arena.ground.broker()?.rabbitmqctl(&end).await?;
    recovery(arena, RECOVERED).await?;
    progress(arena, 50.0).await?;
    arena.duplicates_are_announced();
    never_said(&arena.relays, "did not keep its deadline")
}
