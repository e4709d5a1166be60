//! `relay why` and `relay dead list`, with the account of `deploy/grants/viewer.sql`.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_core::Uuid;
use serde_json::Value;
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    ledger::Draft,
    load, on_both_databases,
    relay::{Client, Settings},
    servers::Flavor,
};

use crate::stage::{PATIENCE, Stage, account, client, start};

on_both_databases!(
    each_message_has_its_cause,
    each_lane_has_its_verdict,
    nothing_hidden_is_shown,
    dead_messages_are_listed_by_pages_and_counted,
);

const VIEWER: &str = include_str!("../../deploy/grants/viewer.sql");

struct Viewer(Client);

impl Viewer {
    async fn new(stage: &Stage) -> Result<Self> {
        Ok(Self(client(account(&stage.database, &VIEWER.replace("outbox_viewer", "{user}")).await?)))
    }

    async fn why(&self, id: Uuid) -> Result<Value> {
        self.0.json("why", &[&id.to_string()]).await
    }

    async fn expect(&self, message: &Draft, expected: &str, part: &str) -> Result<Value> {
        let why = self.why(message.id).await?;
        let text = |name: &str| why[name].as_str().unwrap_or_default();
        let found = format!("{}/{}", text("state"), text("cause"));
        ensure!(found == expected && text("why").contains(part), "not {expected}: {why:#}");
        Ok(why)
    }
}

async fn each_message_has_its_cause(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::with(Database::create(flavor).await?, Topic::create_narrow(20_000).await?)?;
    let topic = stage.topic.name().to_owned();
    stage.settings = Settings::new(&stage.database.url_as(Account::Relay)?)
        .kafka(stage.topic.address())
        .route([("topics", topic.as_str()), ("sink", "kafka"), ("topic", "{topic}"), ("after_dead", "block")])
        .set("relay", "lanes", vec![0]);
    let viewer = Viewer::new(&stage).await?;
    let commit = async |draft: &Draft, change: &(dyn Fn(outbox_core::Message) -> outbox_core::Message + Sync)| {
        load::commit(&stage.database, &stage.ledger, std::slice::from_ref(draft), change).await
    };
    let (sent, large, behind) =
        (stage.draft(1), Draft::new(&topic, vec![0; 30_000]).unordered_key("k"), stage.draft(2).unordered_key("k"));
    let scheduled = stage.draft(3).header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let expired = stage.draft(4);
    let elsewhere = Draft::new("elsewhere", "5");
    let unserved = stage.draft(6);
    let claimed = stage.draft(7);
    commit(&scheduled, &|message| message.delay(Duration::from_hours(2))).await?;
    commit(&expired, &|message| message.expires_after(Duration::from_millis(1))).await?;
    for draft in [&sent, &large, &behind, &elsewhere] {
        commit(draft, &|message| message).await?;
    }
    commit(&unserved, &|message| message.lane(9)).await?;
    commit(&claimed, &|message| message.lane(3)).await?;
    viewer.expect(&unserved, "pending/no_relay", "the first of lane 9. No live relay serves the lane").await?;

    let crashing = stage.settings.clone().set("relay", "lanes", vec![3]).crash_at("after_claim");
    let mut crashed = start(&crashing)?;
    crashed.wait_for_end(PATIENCE).await?;
    let claims = stage.database.number("SELECT COUNT(*) FROM outbox_claims").await?;
    ensure!(claims == 1, "{claims} claims: {}", crashed.log()?);
    viewer.expect(&claimed, "claimed/claimed", "publishes it").await?;
    stage.database.execute("UPDATE outbox_claims SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 2 MINUTE").await?;
    viewer.expect(&claimed, "claimed/lease_ended", "None has").await?;

    let mut relay = stage.relay()?;
    let settled = "SELECT (SELECT COUNT(*) FROM outbox_dead) = 2 AND (SELECT COUNT(*) FROM outbox_sent_messages) = 1 \
                   AND (SELECT COUNT(*) FROM outbox_delayed) = 3";
    stage.database.wait_for(PATIENCE, settled).await?;
    relay.stop(PATIENCE).await?;
    let why = viewer.expect(&sent, "sent/sent", &topic).await?;
    let place = why["receipts"][0]["place"].as_str().unwrap_or_default();
    ensure!(place.starts_with(&format!("{topic}/")), "{why}");
    let dead = viewer.expect(&large, "dead/too_large", "later messages of its key wait").await?;
    let why = viewer.expect(&behind, "delayed/behind", "behind message").await?;
    ensure!(why["remedy"] == format!("relay why {}", dead["id"]) && why["trace_id"].is_null(), "{why}");
    let why = viewer.expect(&scheduled, "delayed/scheduled", "scheduled at").await?;
    ensure!(why["trace_id"] == "0af7651916cd43dd8448eb211c80319c", "{why}");
    ensure!(dead["failures"][0]["reason"] == "too_large" && dead["failures"][1].is_null(), "{dead:#}");
    viewer.expect(&expired, "dead/expired", "gave it up").await?;
    viewer.expect(&elsewhere, "delayed/no_route", "its topic elsewhere").await?;
    stage.database.execute("UPDATE outbox_messages SET created_at = created_at - INTERVAL 1 HOUR").await?;
    viewer.expect(&unserved, "pending/no_relay", "none has a claim in it").await?;
    let overdue = "UPDATE outbox_delayed SET due_at = UTC_TIMESTAMP(6) - INTERVAL 1 HOUR WHERE reason = 'scheduled'";
    stage.database.execute(overdue).await?;
    viewer.expect(&scheduled, "delayed/due", "None has").await?;
    stage.database.execute("DELETE FROM outbox_pending WHERE lane = 9").await?;
    viewer.expect(&unserved, "lost/no_state", "never sent").await?;
    viewer.expect(&stage.draft(8), "unknown/not_found", "never committed").await?;
    Ok(())
}

async fn each_lane_has_its_verdict(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?;
    stage.settings = stage.settings.clone().set("relay", "lanes", vec![0, 1]);
    let viewer = Viewer::new(&stage).await?;
    for lane in [0, 1, 9] {
        let draft = stage.draft(usize::from(lane));
        load::commit(&stage.database, &stage.ledger, std::slice::from_ref(&draft), |message| message.lane(lane))
            .await?;
    }
    let elsewhere = Draft::new("elsewhere", "x");
    let scheduled = stage.draft(2);
    load::commit(&stage.database, &stage.ledger, &[scheduled], |message| message.delay(Duration::from_hours(1)))
        .await?;
    stage.commit(std::slice::from_ref(&elsewhere)).await?;
    let pause = "INSERT INTO outbox_controls (kind, name, paused_at, actor, reason) \
                 VALUES ('lane', '1', UTC_TIMESTAMP(6), 'alice', 'x')";
    stage.database.execute(pause).await?;
    stage.database.execute("UPDATE outbox_messages SET created_at = created_at - INTERVAL 1 HOUR").await?;
    let _relay = stage.relay()?;
    let done = "SELECT (SELECT COUNT(*) FROM outbox_sent_messages) = 1 AND (SELECT COUNT(*) FROM outbox_delayed) = 2 \
                AND (SELECT COUNT(*) FROM outbox_claims) = 0";
    stage.database.wait_for(PATIENCE, done).await?;
    let status = viewer.0.json("status", &[]).await?;
    let lanes = status["lanes"].as_array().cloned().unwrap_or_default();
    let found =
        |name: &str| lanes.iter().map(|lane| lane[name].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>();
    assert_eq!(found("state"), ["waiting", "paused", "unserved"], "{status:#}");
    let parts = [
        "Nothing can be sent now. 1 message waits (unroutable): kafka/elsewhere: ",
        "Paused by alice (x); 1 message has been due for 1 h",
        "no live relay serves it",
    ];
    let whole = status["verdict"].as_str().unwrap_or_default();
    ensure!(whole.ends_with("; 1 relay runs. Lane 9 is unserved. Lane 1 is paused. Lane 0 is waiting."), "{whole}");
    let verdicts = found("verdict");
    ensure!(parts.iter().zip(&verdicts).all(|(part, verdict)| verdict.contains(part)), "{verdicts:?}");
    ensure!(lanes[0]["delayed"] == 2 && lanes[2]["pending"] == 1, "{status:#}");
    Ok(())
}

/// Neither the key nor a header nor the payload is shown, and an error text forges no line.
async fn nothing_hidden_is_shown(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let viewer = Viewer::new(&stage).await?;
    let message = Draft::new(stage.topic.name(), "S3CRET").unordered_key("S3CRET").header("S3CRET", "S3CRET");
    let message = message.header("traceparent", "00-S3CRET1916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    stage.commit(std::slice::from_ref(&message)).await?;
    let bury = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, \
                owner) \
                SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 1, 'rejected', 'no\\n2026 forged', 'test' \
                FROM outbox_pending";
    stage.database.execute(bury).await?;
    stage.database.execute("DELETE FROM outbox_pending").await?;
    let table = viewer.0.done("why", &[&message.id.to_string()]).await?;
    let json = viewer.why(message.id).await?.to_string();
    ensure!(!table.contains("S3CRET") && !json.contains("S3CRET"), "{table}{json}");
    ensure!(table.contains("no\\u{a}2026 forged") && !table.lines().any(|line| line.starts_with("2026")), "{table}");
    ensure!(!viewer.0.done("status", &[]).await?.is_empty());
    Ok(())
}

/// 2,500 dead messages of two lanes, reasons and topics: more than one read of the table.
async fn dead_messages_are_listed_by_pages_and_counted(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let viewer = Viewer::new(&stage).await?;
    let drafts: Vec<_> = (0..2_500).map(|n| Draft::new(["a", "b"][n % 2], "x")).collect();
    for drafts in drafts.chunks(500) {
        stage.commit(drafts).await?;
    }
    let first = stage.database.number("SELECT MIN(CAST(id AS SIGNED)) FROM outbox_pending").await?;
    let bury = format!(
        "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, owner) \
         SELECT (id - {first}) DIV 2000, id, 0, 1, 3, UTC_TIMESTAMP(6), id = {first}, IF(MOD(id - {first}, 5) = 0, \
         'too_large', 'refused'), \
         'no\\nroom', 'test' FROM outbox_pending; DELETE FROM outbox_pending"
    );
    stage.database.execute(&bury).await?;

    let counts = |page: &Value| {
        let rows = page["rows"].as_array().cloned().unwrap_or_default();
        rows.iter().map(|row| (row["group"].to_string(), row["messages"].to_string())).collect::<Vec<_>>()
    };
    let group = |name: &str, messages: u64| (format!("\"{name}\""), messages.to_string());
    let by = async |by: &str, more: &[&str]| viewer.0.json("dead list --group-by", &[&[by], more].concat()).await;
    let reasons = by("reason", &[]).await?;
    assert_eq!(counts(&reasons), [group("refused", 2_000), group("too_large", 500)]);
    assert_eq!((&reasons["next"], &reasons["rows"][1]["holding"]), (&Value::Null, &1.into()));
    assert_eq!(counts(&by("topic", &["--lane", "1"]).await?), [group("a", 250), group("b", 250)]);
    assert_eq!(
        counts(&by("error", &["--topic", "b", "--reason", "too_large"]).await?),
        [group("too_large: no\\nroom", 250)]
    );

    let mut ids = Vec::new();
    let mut after = "0:0".to_owned();
    loop {
        let page = viewer.0.json("dead list --reason too_large --limit 150 --after", &[&after]).await?;
        ids.extend(page["rows"].as_array().into_iter().flatten().map(|row| row["id"].as_i64().unwrap_or(0) - first));
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => break,
        }
    }
    ensure!(ids.iter().copied().eq((0..2_500).step_by(5)), "{} messages: {ids:?}", ids.len());
    let table = viewer.0.done("dead list --limit 1", &[]).await?;
    ensure!(table.lines().count() == 2 && table.contains("no\\u{a}room"), "{table}");
    Ok(())
}
