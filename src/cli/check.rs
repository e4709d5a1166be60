use std::time::Instant;

use outbox_core::check_schema;

use super::{End, migrate::connect};
use crate::{config::Config, run};

/// The configuration is good if this is reached; `online`: so is what it names.
pub(super) async fn check(config: &Config, online: bool) -> anyhow::Result<End> {
    eprintln!("configuration: ok");
    if !online {
        return Ok(End::Ok);
    }
    let mut good = tell("database", &database(config).await);
    for (name, sink) in &config.sinks {
        let feed = run::feed(name, sink, config)?;
        let reached = feed.sink.check(Instant::now() + config.relay.publish_deadline).await;
        good &= tell(name, &reached.map_err(Into::into));
        feed.sink.close().await;
    }
    Ok(if good { End::Ok } else { End::No })
}

async fn database(config: &Config) -> anyhow::Result<()> {
    let mut db = connect(config).await?;
    Ok(check_schema(&mut db).await?)
}

fn tell(what: &str, outcome: &anyhow::Result<()>) -> bool {
    match outcome {
        Ok(()) => eprintln!("{what}: ok"),
        Err(error) => eprintln!("{what}: {error:#}"),
    }
    outcome.is_ok()
}
