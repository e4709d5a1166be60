//! Messages that a broker never takes: their outcomes, and those of their neighbours.

use anyhow::{Result, ensure};
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    judge::Expectations,
    ledger::Draft,
    proxy::{Cut, Direction, Proxy},
    relay::{Metrics, Settings},
    servers::Flavor,
};

use crate::stage::{PATIENCE, Stage, start};

/// Creates a stage with a Kafka topic of one partition that takes 20 kB at once.
async fn narrow_topic() -> Result<Stage> {
    let topic = Topic::create_narrow(20_000).await?;
    Ok(Stage::with(Database::create(Flavor::MySql).await?, topic)?.patient())
}

#[tokio::test]
async fn a_message_above_the_limit_takes_no_other_of_its_key_along() -> Result<()> {
    let mut stage = narrow_topic().await?;
    // The sink's documentation asks for this where the order of a key matters.
    stage.settings = stage.settings.clone().kafka_property("batch.size", "18000");
    let large = Draft::new(stage.topic.name(), vec![0; 30_000]).unordered_key("k");
    let mut drafts: Vec<Draft> = (1..=100).map(|n| stage.draft(0).key("k", n)).collect();
    drafts.insert(50, large.clone());
    stage.commit(&drafts).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(101).dead([large.id])).await
}

#[tokio::test]
async fn small_messages_that_are_above_the_limit_only_together_all_arrive() -> Result<()> {
    let mut stage = narrow_topic().await?;
    // Requests that are refused as a whole keep no order within a key.
    let draft = |_| Draft::new(stage.topic.name(), vec![b'x'; 5_000]).unordered_key("k");
    stage.commit(&(1..=300).map(draft).collect::<Vec<_>>()).await?;
    let _relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(300)).await
}

/// Creates a stage with a RabbitMQ exchange on which the event type decides whether a message can be routed.
async fn by_event_type(keys: &[(&str, &str)]) -> Result<Stage> {
    let topic = Topic::create(Broker::RabbitMq).await?;
    let mut stage = Stage::with(Database::create(Flavor::MariaDb).await?, topic)?;
    let route = [("topics", "*"), ("sink", "rabbitmq"), ("exchange", stage.topic.name()), ("routing_key", "{type}")];
    stage.settings = Settings::new(&stage.database.url_as(Account::Relay)?)
        .rabbitmq(stage.topic.address())
        .route(route.into_iter().chain(keys.iter().copied()))
        .set("retry", "max_attempts", 3)
        .set("relay", "publish_deadline", "5s")
        .set("relay", "lease", "8s");
    Ok(stage)
}

fn routable(stage: &Stage, key: &str, sequence: u64) -> Draft {
    stage.draft(0).key(key, sequence).described(stage.topic.name(), "text/plain")
}

fn unroutable(stage: &Stage, key: &str) -> Draft {
    stage.draft(0).unordered_key(key).described("nowhere", "text/plain")
}

#[tokio::test]
async fn a_dead_message_of_a_blocking_route_holds_its_key_and_no_other() -> Result<()> {
    let mut stage = by_event_type(&[("after_dead", "block")]).await?;
    let bad = unroutable(&stage, "a");
    let held = [routable(&stage, "a", 2), routable(&stage, "a", 3)];
    let free: Vec<Draft> = (1..=20).map(|n| routable(&stage, "b", n)).collect();
    let drafts = [vec![routable(&stage, "a", 1), bad.clone()], held.to_vec(), free].concat();
    stage.commit(&drafts).await?;
    let _relay = stage.relay()?;
    let settled = "SELECT (SELECT COUNT(*) FROM outbox_sent_messages) = 21 \
                   AND (SELECT COUNT(*) FROM outbox_dead) = 1 \
                   AND (SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'behind') = 2 \
                   AND (SELECT COUNT(*) FROM outbox_claims) = 0";
    stage.database.wait_for(PATIENCE, settled).await?;
    let expected = Expectations::new().at_least(24).dead([bad.id]);
    stage.report().await?.assert_ok(&expected.waiting(held.iter().map(|draft| draft.id)))?;
    // The operator discards it: the key goes on.
    stage.database.execute("UPDATE outbox_dead SET holds_key = 0").await?;
    stage.drain_and_judge(&Expectations::new().at_least(24).dead([bad.id])).await
}

#[tokio::test]
async fn a_route_that_retries_gives_up_after_its_attempts_and_keeps_the_order() -> Result<()> {
    let mut stage = by_event_type(&[("on_rejected", "retry")]).await?;
    let bad = unroutable(&stage, "a");
    let drafts = [vec![routable(&stage, "a", 1), bad.clone()], (2..=10).map(|n| routable(&stage, "a", n)).collect()];
    stage.commit(&drafts.concat()).await?;
    let relay = stage.relay()?;
    stage.drain_and_judge(&Expectations::new().at_least(11).dead([bad.id])).await?;
    let dead = "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'attempts_exhausted' AND attempts = 3";
    ensure!(stage.database.number(dead).await? == 1, "it was not tried three times");
    let retries = relay.metrics().await?.sum_where("outbox_relay_retries_scheduled_total", "reason=\"rejected\"");
    ensure!((retries - 2.0).abs() < 0.5, "the metric counts {retries} retries");
    Ok(())
}

/// The number of attempts of a route takes effect on messages that wait already. One that is dead stays so.
#[tokio::test]
async fn a_route_has_its_own_number_of_attempts() -> Result<()> {
    let mut stage = by_event_type(&[("on_rejected", "retry"), ("retry_base", "10ms"), ("retry_max", "20ms")]).await?;
    let first = unroutable(&stage, "a");
    let second = unroutable(&stage, "b");
    let dead = |attempts: u8| format!("SELECT COUNT(*) = 1 FROM outbox_dead WHERE attempts = {attempts}");
    stage.settings = stage.settings.clone().env("RELAY__ROUTES__0__MAX_ATTEMPTS", "2");
    stage.commit(std::slice::from_ref(&first)).await?;
    let mut relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, &dead(2)).await?;
    relay.stop(PATIENCE).await?;
    stage.settings = stage.settings.clone().env("RELAY__ROUTES__0__MAX_ATTEMPTS", "5");
    let _relay = stage.relay()?;
    stage.commit(std::slice::from_ref(&second)).await?;
    stage.database.wait_for(PATIENCE, &dead(5)).await?;
    ensure!(stage.database.number(&dead(2)).await? == 1, "the dead message was brought back");
    stage.drain_and_judge(&Expectations::new().dead([first.id, second.id])).await
}

/// A settlement that the database refuses has not happened.
#[tokio::test]
async fn a_dead_message_is_counted_when_it_is_written_and_not_before() -> Result<()> {
    let mut stage = by_event_type(&[]).await?;
    let bad = [unroutable(&stage, "a")];
    stage.commit(&bad).await?;
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON outbox_dead FOR EACH ROW SIGNAL SQLSTATE '45000'";
    stage.database.execute(trigger).await?;
    let relay = stage.relay()?;
    relay.wait_for_log(PATIENCE, "a claim cannot be settled").await?;
    let counted = async || anyhow::Ok(relay.metrics().await?.sum("outbox_relay_dead_messages_total"));
    let before = counted().await?;
    ensure!(before < 0.5, "{before} dead messages were counted and none was written");
    stage.database.execute("DROP TRIGGER refuse").await?;
    stage.drain_and_judge(&Expectations::new().dead(bad.map(|draft| draft.id))).await?;
    let after = counted().await?;
    ensure!((after - 1.0).abs() < 0.5, "{after} dead messages were counted");
    Ok(())
}

/// Messages that cannot be settled are not sent repeatedly. Only the relay that takes the claim over sends them again,
/// which costs attempts.
#[tokio::test]
async fn a_claim_that_the_database_does_not_let_settle_is_sent_once_a_lease() -> Result<()> {
    let stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let refused: Vec<Draft> = (1..=10).map(|n| stage.draft(0).key("refused", n)).collect();
    stage.commit(&refused).await?;
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON outbox_sent FOR EACH ROW \
                   IF NEW.message_ids LIKE '[1,%' THEN SIGNAL SQLSTATE '45000'; END IF";
    stage.database.execute(trigger).await?;
    let relay = start(
        &stage
            .settings
            .clone()
            .set("retry", "max_attempts", 2)
            .set("relay", "publish_deadline", "5s")
            .set("relay", "lease", "8s"),
    )?;
    relay.wait_for_log(PATIENCE, "a claim cannot be settled").await?;
    // A later message of the same key waits for the claim, one of another key does not.
    stage.commit(&[stage.draft(0).key("refused", 11), stage.draft(0).key("other", 1)]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let sent = relay.metrics_within(PATIENCE).await?.sum("outbox_relay_published_messages_total");
    ensure!(sent <= 32.0, "12 messages were sent {sent} times");
    let dead = "SELECT COUNT(*) FROM outbox_dead WHERE reason = 'attempts_exhausted'";
    ensure!(stage.database.number(dead).await? == 10, "the messages of the claim are not dead");
    Ok(())
}

/// Like a network that carries less than a claim within `relay.settle_deadline`, and a single message that is too large
/// for it.
#[tokio::test]
async fn a_message_that_the_database_does_not_give_out_holds_up_no_other() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    stage
        .commit(&(1..=100).map(|n| stage.draft(0).key(format!("k{}", n % 50), 1 + (n - 1) / 50)).collect::<Vec<_>>())
        .await?;
    let slow = "RENAME TABLE outbox_messages TO messages; CREATE VIEW outbox_messages AS \
                SELECT * FROM messages WHERE SLEEP(IF(id = 25, 3600, 0.03)) = 0";
    stage.database.execute(slow).await?;
    let settings = stage.settings.clone().set("relay", "settle_deadline", "1s").set("relay", "publish_deadline", "1s");
    let relay = start(&settings.set("relay", "lease", "5s"))?;
    // The other message of its key waits with it.
    let others = "SELECT COALESCE(SUM(JSON_LENGTH(message_ids)), 0) >= 98 FROM outbox_sent";
    stage.database.wait_for(PATIENCE, others).await?;
    let waits = "SELECT COUNT(*) FROM outbox_delayed WHERE id = 25 AND reason = 'unread' AND attempts = 0";
    stage.database.wait_for(PATIENCE, waits).await?;
    stage.database.execute("DROP VIEW outbox_messages; RENAME TABLE messages TO outbox_messages").await?;
    stage.database.execute("UPDATE outbox_delayed SET due_at = UTC_TIMESTAMP(6)").await?;
    stage.drain_and_judge(&Expectations::new().at_least(100)).await?;
    relay.kill()
}

/// Like a network that breaks large transfers for longer than a lease: the message is not the cause.
#[tokio::test]
async fn a_message_whose_transfer_is_cut_again_and_again_is_sent_once_it_is_not() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let proxy = Proxy::start(&stage.database.url_as(Account::Relay)?).await?;
    proxy.cut(Direction::ToClient, Cut::After(40_000));
    stage.commit(&[Draft::new(stage.topic.name(), vec![0; 60_000])]).await?;
    let settings = stage.settings.clone().set("database", "url", proxy.address());
    let settings = settings.set("relay", "settle_deadline", "1s").set("relay", "publish_deadline", "1s");
    let mut relay = start(&settings.set("relay", "lease", "3s").set("relay", "safety", "1s"))?;
    // With the growing pauses, ten tries take four leases.
    let cut = |m: &Metrics| m.sum_where("outbox_relay_db_errors_total", "operation=\"read\"") >= 10.0;
    relay.wait_for_metrics(PATIENCE, "reads that are cut", cut).await?;
    proxy.heal();
    stage.drain_and_judge(&Expectations::new()).await?;
    relay.kill()
}

/// The message that was being read is not the cause.
#[tokio::test]
async fn a_message_that_is_read_while_the_database_stands_still_is_sent_afterwards() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::Kafka).await?;
    let proxy = Proxy::start(&stage.database.url_as(Account::Relay)?).await?;
    // So large that the claim does not return it.
    stage.commit(&[Draft::new(stage.topic.name(), vec![7; 100_000])]).await?;
    let settings = stage.settings.clone().set("database", "url", proxy.address()).set("relay", "lease", "15s");
    let mut relay = start(&settings.pause_at("after_claim"))?;
    relay.wait_for_pause(PATIENCE).await?;
    for direction in Direction::BOTH {
        proxy.black_hole(direction);
    }
    relay.resume()?;
    let failed = |m: &Metrics| m.sum_where("outbox_relay_db_errors_total", "operation=\"read\"") > 0.5;
    relay.wait_for_metrics(PATIENCE, "reads that time out", failed).await?;
    // The database answers after the pause that follows the last read within the lease. The first failure is then a
    // lease ago.
    stage
        .database
        .wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_claims WHERE lease_until < UTC_TIMESTAMP(6)")
        .await?;
    proxy.heal();
    stage.drain_and_judge(&Expectations::new()).await?;
    relay.kill()
}
