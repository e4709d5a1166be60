//! Tokens that expire while relays run: for RabbitMQ, in the file of the password.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use testkit::{
    consume::{Broker, Topic},
    relay::Relay,
    servers::{RabbitMq, until},
};

use crate::{issuer::Issuer, login::PATIENCE, rotation::Rotation};

/// All rights on the virtual host `/`.
const RIGHTS: &str = "rabbitmq.configure:*/* rabbitmq.write:*/*/* rabbitmq.read:*/*/*";

/// A token that expires costs no message: neither while the file has a new one in time, nor while it has an old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_rabbitmq_is_renewed_from_its_file_and_costs_no_message_if_it_is_not() -> Result<()> {
    let issuer = Issuer::new()?;
    let key = tempfile::NamedTempFile::new()?;
    std::fs::write(key.path(), issuer.pem())?;
    let server = RabbitMq::with_tokens(key.path()).await?;
    let rotation = Rotation::new(Topic::create_on(Broker::RabbitMq, &server.amqp_url()).await?).await?;
    let url = server.amqp_url().replace("guest:guest@", "relay@");
    let settings = rotation.settings()?.with_broker_of(&rotation.topic).rabbitmq(&url);
    let settings = settings.sink_key("rabbitmq", "password_file", rotation.file());
    let write = |life| rotation.write(&issuer.sign("rabbitmq", RIGHTS, life)?);
    let life = Duration::from_secs(20);
    write(life.as_secs())?;
    let first = Instant::now();
    let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings)?;
    rotation.commit().await?;
    rotation.database.wait_until_drained(PATIENCE).await.with_context(|| relay.log().unwrap_or_default())?;
    write(600)?;
    relay.wait_for_log(PATIENCE, "RabbitMQ has the changed password").await?;
    // A file that is away for a while takes nothing back.
    std::fs::remove_file(rotation.file())?;
    until(PATIENCE, "the first token's end", || async {
        rotation.commit().await?;
        ensure!(first.elapsed() > life, "not yet");
        Ok(())
    })
    .await?;
    rotation.database.wait_until_drained(PATIENCE).await.with_context(|| relay.log().unwrap_or_default())?;
    ensure!(!relay.log()?.contains("the sink is unavailable"), "{}", relay.log()?);
    write(10)?;
    until(PATIENCE, "the last token's end", || async {
        rotation.commit().await?;
        ensure!(relay.log()?.contains("the sink is unavailable"), "not yet");
        Ok(())
    })
    .await?;
    write(600)?;
    rotation.has_lost_nothing(&relay).await
}
