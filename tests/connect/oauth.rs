//! Tokens of an issuer, which expire while relays and consumers run: for Kafka (OAUTHBEARER, client credentials), and for
//! RabbitMQ (in the file of the password).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use outbox_consumer::{handler_fn, kafka};
use outbox_core::sqlx::MySqlPool;
use testkit::{
    consume::{Broker, Topic},
    database::Database,
    relay::Relay,
    servers::{Flavor, Kafka, RabbitMq, until},
};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{check, issuer::Issuer, login::PATIENCE, rotation::Rotation};

/// Returns a broker whose listener behind the proxy takes tokens of this issuer until they expire.
async fn broker(issuer: &str) -> Result<Kafka> {
    let checks = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler";
    let module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;";
    Kafka::with(&[
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT"),
        ("listener.name.proxied.oauthbearer.connections.max.reauth.ms", "60000"),
        ("listener.name.proxied.oauthbearer.sasl.jaas.config", module),
        ("listener.name.proxied.oauthbearer.sasl.server.callback.handler.class", checks),
        ("sasl.enabled.mechanisms", "OAUTHBEARER"),
        ("sasl.oauthbearer.clock.skew.seconds", "0"),
        ("sasl.oauthbearer.expected.audience", "kafka"),
        ("sasl.oauthbearer.expected.issuer", issuer),
        // The default of Kafka 4.1.0 takes a token of anyone.
        ("sasl.oauthbearer.jwt.validator.class", "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator"),
        ("sasl.oauthbearer.jwks.endpoint.url", &format!("{issuer}/keys")),
    ])
    .await
}

fn login<'a>(endpoint: &'a str, secret: &'a str) -> [(&'a str, &'a str); 6] {
    [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.method", "oidc"),
        ("sasl.oauthbearer.client.id", "relay"),
        ("sasl.oauthbearer.client.secret", secret),
        ("sasl.oauthbearer.token.endpoint.url", endpoint),
    ]
}

fn is_refused(brokers: &str, endpoint: &str, secret: &str, sentence: &str) -> Result<()> {
    let properties = login(endpoint, secret).map(|(name, value)| format!("\"{name}\" = \"{value}\"")).join(", ");
    let found = check::kafka(brokers, &properties)?;
    ensure!(!found.ok && found.detail.contains(sentence), "{}", found.detail);
    ensure!(!found.detail.contains(secret), "{}", found.detail);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_for_kafka_are_fetched_again_before_they_expire() -> Result<()> {
    let mut tasks = JoinSet::new();
    let issuer = Issuer::start(&mut tasks).await?;
    let endpoint = format!("{}/token", issuer.address);
    let server = broker(&issuer.address).await?;
    let proxy = server.proxy().await?;
    is_refused(proxy.address(), &endpoint, "wrong", "the issuer gives no token")?;
    is_refused(proxy.address(), "http://127.0.0.1:1/token", "hunter2", "the issuer gives no token")?;
    let stranger = Issuer::start(&mut tasks).await?;
    let foreign = format!("{}/token", stranger.address);
    is_refused(proxy.address(), &foreign, "hunter2", "the broker does not take the issuer's token")?;
    let rotation = Rotation::new(Topic::create_on(Broker::Kafka, &server.bootstrap()).await?).await?;
    let mut settings = rotation.settings()?.with_broker_of(&rotation.topic).kafka(proxy.address());
    let billing = Database::create(Flavor::MySql).await?;
    let pool = MySqlPool::connect(billing.url()).await?;
    let mut consumer = kafka::Consumer::new(proxy.address(), "billing", pool)?.topic(rotation.topic.name());
    for (name, value) in login(&endpoint, "hunter2") {
        settings = settings.kafka_property(name, value);
        consumer = consumer.property(name, value);
    }
    let (stop, stopped) = oneshot::channel::<()>();
    let handler = handler_fn(|_tx, _message| Box::pin(async { Ok(()) }));
    let consumer = tokio::spawn(consumer.run(handler, async { drop(stopped.await) }));
    let several = async |rotation: &Rotation| {
        until(PATIENCE, "the tokens of two clients, four times", || async {
            rotation.commit().await?;
            ensure!(issuer.issued() >= 8, "{} tokens", issuer.issued());
            Ok(())
        })
        .await?;
        rotation.database.wait_until_drained(PATIENCE).await?;
        let sent = rotation.database.number("SELECT COUNT(*) FROM outbox_sent_messages").await?;
        billing.wait_for(PATIENCE, &format!("SELECT COUNT(*) >= {sent} FROM inbox_processed")).await
    };
    Box::pin(rotation.survives(settings, several)).await?;
    stop.send(()).map_err(|()| anyhow!("the consumer has ended"))?;
    consumer.await??;
    Ok(())
}

/// All rights on the virtual host `/`.
const RIGHTS: &str = "rabbitmq.configure:*/* rabbitmq.write:*/*/* rabbitmq.read:*/*/*";

/// A token that expires costs no message: neither while the file has a new one in time, nor while it has an old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_rabbitmq_is_renewed_from_its_file_and_costs_no_message_if_it_is_not() -> Result<()> {
    let mut tasks = JoinSet::new();
    let issuer = Issuer::start(&mut tasks).await?;
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
