//! `relay doctor` in set-ups that are broken on purpose: each has exactly its finding, and the printed command clears
//! it.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::{
    accounts::Account,
    clock::Clock,
    consume::{Broker, Topic},
    database::Database,
    ledger::Draft,
    load, on_both_databases,
    relay::Settings,
    servers::{self, Flavor, MySql, MySqlOptions, until},
};
use tokio::process::Command;

use crate::stage::{PATIENCE, Stage, client};

on_both_databases!(
    each_broken_server_or_account_is_found,
    each_broken_table_or_row_is_found,
    each_broken_configuration_or_broker_is_found,
);

/// A sound world, but for the one replica of the topic and what cannot be checked.
const SOUND: [&str; 3] = ["not_checked", "one_replica", "table_sizes"];

/// A server of its own, because its settings are broken.
struct Clinic {
    _server: MySql,
    clock: Clock,
    stage: Stage,
}

/// The remedy for a finding.
enum Cure<'a> {
    /// The printed command.
    Printed,
    /// These statements.
    Sql(&'a str),
}

/// Returns the findings by their codes.
pub(crate) async fn examine(settings: &Settings) -> Result<BTreeMap<String, Value>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("relay.toml");
    std::fs::write(&file, settings.render(1)?)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_relay"));
    command.args(["doctor", "--format", "json", "--config"]).arg(&file).kill_on_drop(true);
    let output = command.output().await?;
    let findings: Vec<Value> =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let is_sound = findings.iter().all(|it| it["severity"] == "note");
    ensure!(output.status.code() == Some(if is_sound { 0 } else { 3 }), "{}: {findings:#?}", output.status);
    Ok(findings.into_iter().map(|it| (it["finding"].as_str().unwrap_or_default().to_owned(), it)).collect())
}

impl Clinic {
    async fn open(flavor: Flavor) -> Result<Self> {
        let clinic = Self::with(MySqlOptions::new(flavor)).await?;
        clinic.expect(&[]).await?;
        Ok(clinic)
    }

    async fn with(options: MySqlOptions) -> Result<Self> {
        let clock = Clock::new()?;
        let server = options.clock(&clock).start().await?;
        let mut stage = Stage::with(Database::create_on(&server.url()).await?, Topic::create(Broker::Kafka).await?)?;
        stage.settings = Settings::new(&stage.database.url_as(Account::RelayWithTail)?)
            .kafka(stage.topic.address())
            .rabbitmq(&Broker::RabbitMq.address().await?)
            .route([("topics", stage.topic.name()), ("sink", "kafka"), ("topic", "{topic}")])
            .route([("topics", "mail"), ("sink", "rabbitmq"), ("exchange", "amq.topic"), ("routing_key", "{topic}")]);
        Ok(Self { _server: server, clock, stage })
    }

    /// Returns the findings by their codes, without those of the sound world.
    async fn found(&self, settings: &Settings) -> Result<BTreeMap<String, Value>> {
        let mut found = examine(settings).await?;
        found.retain(|code, _| !SOUND.contains(&code.as_str()));
        Ok(found)
    }

    async fn expect_with(&self, settings: &Settings, codes: &[&str]) -> Result<BTreeMap<String, Value>> {
        let found = self.found(settings).await?;
        ensure!(found.keys().eq(codes.iter()), "{codes:?} are not {found:#?}");
        Ok(found)
    }

    async fn expect(&self, codes: &[&str]) -> Result<BTreeMap<String, Value>> {
        self.expect_with(&self.stage.settings, codes).await
    }

    /// Breaks something, and expects exactly this finding, until it is cured.
    async fn case(&self, code: &str, sql: &str, cure: Cure<'_>) -> Result<Value> {
        self.stage.database.execute(sql).await.with_context(|| sql.to_owned())?;
        let found = self.expect(&[code]).await?.remove(code).context("not found")?;
        self.cure(&found, cure).await.with_context(|| format!("{found:#}"))?;
        self.expect(&[]).await?;
        Ok(found)
    }

    async fn cure(&self, found: &Value, cure: Cure<'_>) -> Result<()> {
        let command = match cure {
            Cure::Sql(sql) => return self.stage.database.execute(sql).await,
            Cure::Printed => found["command"].as_str().context("no command")?,
        };
        if found["run_in"] == "mysql" {
            return self.stage.database.execute(command).await;
        }
        let account = if command.contains("migrate") { Account::Owner } else { Account::Operator };
        let mut shell = Command::new("sh");
        shell.args(["-c", &command.replace("relay ", concat!(env!("CARGO_BIN_EXE_relay"), " "))]);
        let output = shell.env("RELAY__DATABASE__URL", self.stage.database.url_as(account)?).output().await?;
        ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

async fn each_broken_server_or_account_is_found(flavor: Flavor) -> Result<()> {
    let clinic = Clinic::open(flavor).await?;
    let printed = || Cure::Printed;
    clinic.case("not_durable", "SET GLOBAL innodb_flush_log_at_trx_commit = 2", printed()).await?;
    clinic.case("binlog_not_durable", "SET GLOBAL sync_binlog = 0", printed()).await?;
    clinic.case("binlog_format", "SET GLOBAL binlog_format = STATEMENT", printed()).await?;
    clinic.case("few_connections", "SET GLOBAL max_connections = 30", printed()).await?;
    clinic.case("small_packets", "SET GLOBAL max_allowed_packet = 1048576", printed()).await?;
    clinic.case("read_only", "SET GLOBAL read_only = ON", printed()).await?;
    clinic.case("read_only_default", "SET GLOBAL TRANSACTION READ ONLY", printed()).await?;

    let account = "'outbox_relay_tail'@'%'";
    let revoke = format!(
        "REVOKE DELETE ON outbox_claims FROM {account}; REVOKE UPDATE (takeovers) ON outbox_pending FROM {account}"
    );
    let missing = clinic.case("privilege_missing", &revoke, printed()).await?;
    let lines = missing["command"].as_str().unwrap_or_default().lines().count();
    ensure!(lines == 2, "{missing:#}");
    let unread = clinic.case("no_tail", &format!("REVOKE REPLICATION SLAVE ON *.* FROM {account}"), printed()).await?;
    ensure!(unread["evidence"].as_str().unwrap_or_default().contains("(privilege)"), "{unread:#}");
    clinic.case("no_tail", "SET GLOBAL binlog_row_image = MINIMAL", printed()).await?;
    clinic.case("transactions_unseen", &format!("REVOKE PROCESS ON *.* FROM {account}"), printed()).await?;
    let view = "CREATE OR REPLACE DEFINER = {} VIEW outbox_claimed_messages AS SELECT id FROM outbox_messages";
    let mended = view.replace("{}", "CURRENT_USER");
    clinic.case("view_unusable", &view.replace("{}", "'nobody'@'localhost'"), Cure::Sql(&mended)).await?;
    let name = database_name(&clinic.stage.database)?;
    let excessive = format!("GRANT SELECT, UPDATE ON `{name}`.* TO {account}");
    clinic.case("privilege_excessive", &excessive, printed()).await?;
    clinic.case("privilege_excessive", &format!("GRANT SELECT, RELOAD ON *.* TO {account}"), printed()).await?;

    let sleeping = format!(
        "CREATE ROLE sleeper; GRANT DELETE ON outbox_pending TO sleeper; GRANT sleeper TO {account}; \
         REVOKE DELETE ON outbox_pending FROM {account}"
    );
    let missing = clinic.case("privilege_missing", &sleeping, printed()).await?;
    ensure!(missing["command"].as_str().unwrap_or_default().starts_with("SET DEFAULT ROLE "), "{missing:#}");
    let nested = format!(
        "CREATE ROLE inner_role; GRANT RELOAD ON *.* TO inner_role; CREATE ROLE outer_role; GRANT inner_role TO outer_role; \
         GRANT SELECT ON `{name}`.* TO outer_role; GRANT outer_role TO {account}"
    );
    let excessive = clinic.case("privilege_excessive", &nested, printed()).await?;
    let evidence = excessive["evidence"].as_str().unwrap_or_default();
    for part in ["RELOAD on *.*", &format!("SELECT on `{name}`.*"), "through the role `outer_role`"] {
        ensure!(evidence.contains(part), "{evidence}");
    }

    // They change nothing for a relay.
    let database = &clinic.stage.database;
    database.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE; SET GLOBAL time_zone = '+09:00'").await?;
    clinic.expect(&[]).await?;
    database.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET GLOBAL time_zone = SYSTEM").await?;

    let mut holder = clinic.stage.database.connect().await?;
    outbox_core::sqlx::raw_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT; SELECT COUNT(*) FROM outbox_messages")
        .execute(&mut holder)
        .await?;
    clinic.clock.ahead(120)?;
    let open = clinic.expect(&["clock_offset", "open_transaction"]).await?;
    let evidence = open["open_transaction"]["evidence"].as_str().unwrap_or_default();
    ensure!(evidence.contains("A transaction of outbox_owner from 127.0.0.1"), "{evidence}");
    clinic.cure(&open["open_transaction"], Cure::Printed).await?;
    // The server ends the transaction after the connection.
    until(PATIENCE, "the end of the transaction", || async { clinic.expect(&["clock_offset"]).await.map(drop) })
        .await?;
    Ok(())
}

/// `MariaDB` shows the version that it is told.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_is_found() -> Result<()> {
    let clinic = Clinic::with(MySqlOptions::new(Flavor::MariaDb).arg("--version=10.5.9-MariaDB")).await?;
    let found = clinic.expect(&["server_version"]).await?;
    let fix = found["server_version"]["fix"].as_str().unwrap_or_default();
    ensure!(fix == "Upgrade it: the statements need MariaDB 10.6.", "{fix}");
    Ok(())
}

fn database_name(database: &Database) -> Result<String> {
    let url = url::Url::parse(database.url())?;
    Ok(url.path().trim_start_matches('/').to_owned())
}

async fn each_broken_table_or_row_is_found(flavor: Flavor) -> Result<()> {
    let clinic = Clinic::open(flavor).await?;
    let database = &clinic.stage.database;
    let printed = || Cure::Printed;
    clinic.case("schema", "ALTER TABLE outbox_leases ENGINE = MyISAM", printed()).await?;
    clinic.case("schema", "DELETE FROM outbox_migrations WHERE version = (SELECT * FROM (SELECT MAX(version) FROM outbox_migrations) m)", printed()).await?;
    let pause = "INSERT INTO outbox_controls (kind, name, paused_at, actor, reason) VALUES ('destination', 'kafka/it''s', UTC_TIMESTAMP(6), 'a', 'x')";
    clinic.case("paused", pause, printed()).await?;
    let job = "INSERT INTO outbox_jobs (action, filter, per_second, created_at, next_at) \
               VALUES ('retry', '{}', 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 2 MINUTE)";
    clinic.case("job_idle", job, printed()).await?;
    let many = "INSERT INTO outbox_controls WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 40) \
                SELECT 'sink', CONCAT('x', a.i, '-', b.i), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, 'a', 'x' FROM n a, n b; \
                ANALYZE TABLE outbox_controls";
    let few = "DELETE FROM outbox_controls; ANALYZE TABLE outbox_controls";
    let large = clinic.case("table_large", many, Cure::Sql(few)).await?;
    ensure!(
        large["evidence"].as_str().unwrap_or_default().starts_with("outbox_controls has about 1600 rows"),
        "{large:#}"
    );
    let sizes = examine(&clinic.stage.settings).await?.remove("table_sizes").context("no sizes")?;
    let sizes = sizes["evidence"].as_str().unwrap_or_default();
    ensure!(sizes.contains("outbox_messages has about") && !sizes.contains("inbox_sequence"), "{sizes}");
    let receipt = |ids: &str, days: u32| {
        format!(
            "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, receipts) \
             VALUES (1, 1, 0, 'x', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL {days} DAY, '{ids}', '[]')"
        )
    };
    clinic.case("purge_behind", &receipt("[]", 30), Cure::Sql("DELETE FROM outbox_sent")).await?;
    clinic.case("counter_behind", &receipt("[5000]", 0), printed()).await?;
    database.execute("DELETE FROM outbox_sent").await?;

    let lane = |message: outbox_core::Message| message.lane(9);
    load::commit(database, &clinic.stage.ledger, &[clinic.stage.draft(1)], lane).await?;
    clinic.expect(&[]).await?;
    let undo = "UPDATE outbox_messages SET created_at = UTC_TIMESTAMP(6)";
    let unserved = "UPDATE outbox_messages SET created_at = created_at - INTERVAL 1 HOUR";
    let found = clinic.case("lane_unserved", unserved, Cure::Sql(undo)).await?;
    ensure!(found["fix"].as_str().unwrap_or_default().contains("serves lane 9"), "{found:#}");
    let bury = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, owner) \
                SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 0, 'rejected', 'x', 'x' FROM outbox_pending; \
                DELETE FROM outbox_pending";
    let exhume = "INSERT INTO outbox_delayed (lane, id, due_at, reason, error) \
                  SELECT lane, id, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 'unroutable', 'no\\nqueue' FROM outbox_dead; \
                  DELETE FROM outbox_dead";
    database.execute(bury).await?;
    let found = clinic.expect(&["dead_messages"]).await?;
    clinic.cure(&found["dead_messages"], Cure::Printed).await?;
    database.execute(exhume).await?;
    let found = clinic.expect(&["messages_wait"]).await?;
    let command = found["messages_wait"]["command"].as_str().unwrap_or_default();
    ensure!(command == "relay delayed retry --reason unroutable --lane 9", "{command}");
    clinic.cure(&found["messages_wait"], Cure::Printed).await?;
    Ok(())
}

async fn each_broken_configuration_or_broker_is_found(flavor: Flavor) -> Result<()> {
    let clinic = Clinic::open(flavor).await?;
    let settings = clinic.stage.settings.clone();
    let kafka = clinic.stage.topic.address();
    let short = settings.clone().set("retention", "inbox", "1h").set("retention", "sent", "2h");
    clinic.expect_with(&short, &["inbox_window"]).await?;
    let kept = settings.clone().set("retention", "inbox", "0").set("retention", "sent", "0");
    clinic.expect_with(&kept, &["never_purged"]).await?;
    let stranger =
        settings.clone().set("database", "url", clinic.stage.database.url_as(Account::Relay)?.replace("horse", "cow"));
    let found = clinic.expect_with(&stranger, &["database_unreachable"]).await?;
    ensure!(
        found["database_unreachable"]["evidence"].as_str().unwrap_or_default().contains("password is wrong"),
        "{found:#?}"
    );
    let to = |topic: &str| settings.clone().first_route([("topics", topic), ("sink", "kafka"), ("topic", topic)]);
    let down = settings.clone().kafka("127.0.0.1:1");
    let found = clinic.found(&down).await?;
    ensure!(found.keys().eq(["sink_unreachable"]), "{found:#?}");

    let missing = format!("{}.missing", clinic.stage.topic.name());
    let found = clinic.expect_with(&to(&missing), &["topic_missing"]).await?;
    let command = found["topic_missing"]["command"].as_str().unwrap_or_default();
    ensure!(
        command.ends_with(&format!("--create --topic {missing} --partitions 6 --replication-factor 1")),
        "{command}"
    );
    servers::create_topic(kafka, &missing, 6).await?;
    clinic.expect_with(&to(&missing), &[]).await?;
    let narrow = Topic::create_narrow(20_000).await?;
    clinic.expect_with(&to(narrow.name()), &["small_messages"]).await?;
    let alone = format!("{}.alone", clinic.stage.topic.name());
    servers::create_topic_with(kafka, &alone, 1, &[("min.insync.replicas", "2")]).await?;
    clinic.expect_with(&to(&alone), &["too_few_replicas"]).await?;

    let mail = |keys: [(&'static str, &'static str); 2]| {
        settings.clone().first_route([("topics", "mail"), ("sink", "rabbitmq")].into_iter().chain(keys))
    };
    clinic.expect_with(&mail([("exchange", "doctor.missing"), ("routing_key", "x")]), &["exchange_missing"]).await?;
    clinic.expect_with(&mail([("exchange", ""), ("routing_key", "doctor.missing")]), &["queue_missing"]).await?;

    // The topics of messages count as well.
    let elsewhere = settings.clone().route([("topics", "*"), ("sink", "kafka"), ("topic", "{topic}.missing.too")]);
    let draft = Draft::new("elsewhere", "x");
    load::commit(&clinic.stage.database, &clinic.stage.ledger, &[draft], |message| message).await?;
    clinic.expect_with(&elsewhere, &["topic_missing"]).await?;

    let failed = client("mysql://nobody@127.0.0.1:1/shop").run("doctor", &[]).await?;
    ensure!(failed.status.code() == Some(2), "a configuration without a sink: {}", failed.status);
    Ok(())
}
