//! Messages arrive in the envelope of their route; a message that does not fit into it is dead and stops no other.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testkit::{
    consume::{Arrival, Broker, Topic},
    database::Database,
    ledger::Draft,
    servers::Flavor,
};

use crate::stage::{PATIENCE, Stage};

/// Sends all messages as events in JSON.
fn as_events(mut stage: Stage) -> Stage {
    let sink = match stage.topic.broker() {
        Broker::Kafka => vec![("sink", "kafka")],
        Broker::RabbitMq => vec![("sink", "rabbitmq"), ("exchange", stage.topic.name())],
    };
    let route = [("topics", "*"), ("envelope", "cloudevents-json"), ("source", "https://shop.example/{topic}")];
    stage.settings = stage.settings.clone().first_route(route.into_iter().chain(sink));
    stage
}

/// Publishes messages until nothing is left to do; returns what arrived.
async fn arrivals(stage: &mut Stage, drafts: &[Draft]) -> Result<Vec<Arrival>> {
    stage.commit(drafts).await?;
    let _relay = stage.relay()?;
    stage.database.wait_until_drained(PATIENCE).await?;
    Ok(stage.topic.read().await?.to_vec())
}

fn find<'a>(arrivals: &'a [Arrival], draft: &Draft) -> Result<&'a Arrival> {
    arrivals.iter().find(|arrival| arrival.id == draft.id).context("it did not arrive")
}

#[tokio::test]
async fn a_message_arrives_in_the_envelope_of_its_route_or_is_dead() -> Result<()> {
    for (broker, prefix) in [(Broker::Kafka, "ce_"), (Broker::RabbitMq, "cloudEvents:")] {
        let mut stage = as_events(Stage::new(Flavor::MySql, broker).await?);
        let order = |payload: &str| {
            let draft = Draft::new(stage.topic.name(), payload).unordered_key("7");
            draft.described("order.paid", "application/json").header("tenant", "blue")
        };
        let paid = order(r#"{"order":7}"#);
        let broken = order("{");
        let gone = order("").tombstone();
        let arrivals = arrivals(&mut stage, &[paid.clone(), broken.clone(), gone.clone()]).await?;

        let arrival = find(&arrivals, &paid)?;
        let content_type = Some("application/cloudevents+json; charset=UTF-8");
        ensure!(arrival.content_type.as_deref() == content_type, "{:?}", arrival.content_type);
        ensure!(arrival.key.as_deref() == Some(&b"7"[..]) && arrival.event_type.as_deref() == Some("order.paid"));
        let mut event: Value = serde_json::from_slice(arrival.payload.as_deref().unwrap_or_default())?;
        let time = event.as_object_mut().and_then(|event| event.remove("time"));
        ensure!(time.is_some_and(|time| time.is_string()), "no time");
        let source = format!("https://shop.example/{}", stage.topic.name());
        let expected = json!({
            "specversion": "1.0", "type": "order.paid", "source": source, "id": paid.id.to_string(),
            "tenant": "blue", "datacontenttype": "application/json", "data": { "order": 7 },
        });
        assert_eq!(event, expected);

        let arrival = find(&arrivals, &gone)?;
        ensure!(arrival.payload.is_none() && arrival.content_type.as_deref() == Some("application/json"));
        ensure!(arrival.headers.contains(&(format!("{prefix}id"), gone.id.to_string())), "{:?}", arrival.headers);

        ensure!(find(&arrivals, &broken).is_err(), "it arrived");
        let dead = "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'invalid' AND attempts = 0 AND error LIKE '%JSON%'";
        ensure!(stage.database.number(dead).await? == 1, "it is not dead");
    }
    Ok(())
}

/// A payload in base64 or as text in JSON is longer than that: see docs/envelopes.md.
#[tokio::test]
async fn what_enqueue_takes_by_default_fits_in_each_envelope() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?.patient();
    let name = stage.topic.name().to_owned();
    let envelopes = ["raw", "cloudevents-binary", "cloudevents-json", "debezium"];
    let mut drafts = Vec::new();
    for envelope in envelopes {
        let keys = [("topics", envelope), ("sink", "kafka"), ("topic", name.as_str()), ("envelope", envelope)];
        stage.settings = stage.settings.clone().first_route(keys);
        let key = "k".repeat(1000);
        let header = "\"".repeat(8000);
        let besides = key.len() + "tenant".len() + header.len();
        for size in [999_600, 999_950, 1_000_000] {
            let payload = format!("[{}]", "1".repeat(size - 2 - besides));
            let draft = Draft::new(envelope, payload).unordered_key(&*key).header("tenant", &header);
            drafts.push(draft.described(&"t".repeat(255), "application/json"));
        }
    }
    let arrivals = arrivals(&mut stage, &drafts).await?;
    let dead = stage.database.number("SELECT COUNT(*) FROM outbox_dead").await?;
    ensure!((arrivals.len(), dead) == (3 * envelopes.len(), 0), "{} arrived, {dead} are dead", arrivals.len());
    Ok(())
}

#[tokio::test]
async fn a_message_that_its_envelope_makes_too_large_is_dead_and_its_neighbours_are_not() -> Result<()> {
    let topic = Topic::create_narrow(20_000).await?;
    let mut stage = as_events(Stage::with(Database::create(Flavor::MySql).await?, topic)?);
    let draft = |size: usize| {
        Draft::new(stage.topic.name(), vec![0xff_u8; size])
            .unordered_key("k")
            .described("t", "application/octet-stream")
    };
    // Base64 adds a third.
    let drafts = [draft(10_000), draft(16_000), draft(10_000)];
    let arrivals = arrivals(&mut stage, &drafts).await?;
    let [first, large, last] = &drafts;
    ensure!(find(&arrivals, first).is_ok() && find(&arrivals, last).is_ok() && find(&arrivals, large).is_err());
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_dead WHERE reason = 'too_large'").await? == 1);
    Ok(())
}
