//! `relay api`: the answers of the command line over HTTP, with the account of `deploy/grants/operator.sql`.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use outbox_core::sqlx;
use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    accounts::Account,
    consume::Broker,
    on_both_databases,
    relay::{Client, Relay, Settings, send},
    servers::{Flavor, until},
    tokens::token_lines,
};

use crate::stage::{PATIENCE, Stage, client};

on_both_databases!(
    the_api_gives_the_answers_of_the_command_line,
    an_order_over_the_api_is_recorded_with_its_caller,
    who_may_not_is_refused_and_nothing_is_ordered,
    a_socket_gives_the_same_answers_to_viewers,
    slow_requests_of_one_caller_keep_no_other_out,
);

const OPEN: &str = "SELECT COUNT(*) = 0 FROM outbox_jobs WHERE ended_at IS NULL";

/// All but the first two pending messages end: one dead, the others delayed.
const MIX: &str = "INSERT INTO outbox_dead (lane, id, key_hash, bytes, attempts, died_at, holds_key, reason, error, \
                   owner) \
    SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6), 0, 'unroutable', 'no queue', 'test' FROM outbox_pending \
    ORDER BY id LIMIT 1; \
    INSERT INTO outbox_delayed (lane, id, key_hash, bytes, attempts, due_at, holds_key, reason, error) \
    SELECT lane, id, key_hash, bytes, 1, UTC_TIMESTAMP(6) + INTERVAL 1 HOUR, 1, 'parked', 'down' FROM outbox_pending \
    ORDER BY id DESC LIMIT 1; \
    DELETE p FROM outbox_pending p JOIN outbox_dead d USING (lane, id); DELETE p FROM outbox_pending p \
    JOIN outbox_delayed d USING (lane, id)";

/// Requests of one caller in a second: more than a test sends.
const MANY: i64 = 10_000;

/// A running API, and the file with its tokens.
struct Api {
    relay: Relay,
    folder: TempDir,
}

impl Api {
    /// Alice is an operator, Bob a viewer, and the proxy names others. A token is the name itself.
    async fn start(stage: &Stage, per_second: i64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("tokens");
        fs::write(&file, token_lines(&[("alice", "operator"), ("bob", "viewer"), ("front", "proxy")]))?;
        let settings = Settings::new(&stage.database.url_as(Account::Operator)?)
            .set("api", "tokens_file", file.to_string_lossy().into_owned())
            .set("api", "requests_per_second", per_second);
        let relay = Relay::start_api(env!("CARGO_BIN_EXE_relay"), &settings)?;
        let api = Self { relay, folder };
        until(PATIENCE, "an answer of the API", async || {
            let (status, body) = api.get("controls", "alice").await?;
            ensure!(status == 200, "{body}");
            Ok(())
        })
        .await
        .with_context(|| api.relay.log().unwrap_or_default())?;
        Ok(api)
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.relay.port())
    }

    async fn send(&self, head: &str, headers: &str, body: &str) -> Result<(u16, Value)> {
        let host = if headers.contains("Host:") { "" } else { "Host: localhost\r\n" };
        let length = body.len();
        let request = format!("{head} HTTP/1.1\r\n{host}{headers}Content-Length: {length}\r\n\r\n{body}");
        let (status, body) = send(self.relay.port(), &request).await?;
        Ok((status, serde_json::from_str(&body).unwrap_or_default()))
    }

    async fn get(&self, path: &str, token: &str) -> Result<(u16, Value)> {
        self.send(&format!("GET /api/v1/{path}"), &format!("Authorization: Bearer {token}\r\n"), "").await
    }

    async fn post(&self, path: &str, token: &str, body: &str) -> Result<(u16, Value)> {
        let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
        self.send(&format!("POST /api/v1/{path}"), &headers, body).await
    }

    /// The command line that asks this API, with a token of its own.
    fn client(&self, token: &str) -> Result<Client> {
        let file = self.folder.path().join(token);
        fs::write(&file, format!("{token}\n"))?;
        let flags = ["--via", &self.url(), "--token-file", &file.to_string_lossy()].map(str::to_owned).to_vec();
        let mut client = client("mysql://nobody@127.0.0.1:1/nothing");
        client.flags = flags;
        Ok(client)
    }
}

/// Without what changes from one call to the next.
fn steady(mut answer: Value) -> Value {
    if let Some(status) = answer.as_object_mut() {
        status.remove("lag_seconds");
        status.remove("lag_seconds_by_cause");
        // It tells for how long the first message has been due.
        status.remove("verdict");
    }
    if let Some(lanes) = answer.get_mut("lanes").and_then(Value::as_array_mut) {
        lanes.iter_mut().filter_map(Value::as_object_mut).for_each(|lane| drop(lane.remove("verdict")));
    }
    answer
}

/// Questions as commands, and as paths with their parameters.
fn questions(topic: &str, sent: &str, dead: &str) -> Vec<(String, String)> {
    vec![
        ("status".to_owned(), "status".to_owned()),
        (format!("why {sent}"), format!("why?message={sent}")),
        (format!("why {dead}"), format!("why?message={dead}")),
        (format!("messages list --topic {topic} --state dead"), format!("messages/list?topic={topic}&state=dead")),
        (format!("messages show {dead}"), format!("messages/show?message={dead}")),
        ("inbox list".to_owned(), "inbox/list".to_owned()),
        ("inbox dead --consumer billing".to_owned(), "inbox/dead?consumer=billing".to_owned()),
        (format!("inbox show {dead}"), format!("inbox/show?message={dead}")),
        ("inbox retries".to_owned(), "inbox/retries".to_owned()),
        ("dead list --error queue".to_owned(), "dead/list?error=queue".to_owned()),
        ("dead list --group-by error".to_owned(), "dead/list?group_by=error".to_owned()),
        (format!("delayed list --limit 1 --topic {topic}"), format!("delayed/list?limit=1&topic={topic}")),
        ("pending list --limit 1".to_owned(), "pending/list?limit=1".to_owned()),
        ("keys blocked".to_owned(), "keys/blocked".to_owned()),
        (format!("keys show {dead}"), format!("keys/show?message={dead}")),
        (format!("keys show --topic {topic} --key k0"), format!("keys/show?topic={topic}&key=k0")),
        ("purge --dry-run".to_owned(), "purge?dry_run=true".to_owned()),
        ("instances".to_owned(), "instances".to_owned()),
        ("controls".to_owned(), "controls".to_owned()),
        ("jobs".to_owned(), "jobs".to_owned()),
        ("audit --limit 1".to_owned(), "audit?limit=1".to_owned()),
        ("dead retry --all".to_owned(), "dead/retry?all=true".to_owned()),
        ("dead release --all".to_owned(), "dead/release?all=true".to_owned()),
        (format!("dead discard {dead}"), format!("dead/discard?message={dead}")),
        ("delayed retry --reason parked --rate 10".to_owned(), "delayed/retry?reason=parked&rate=10".to_owned()),
        ("delayed discard --all".to_owned(), "delayed/discard?all=true".to_owned()),
        (format!("replay --topic {topic}"), format!("replay?topic={topic}")),
    ]
}

async fn the_api_gives_the_answers_of_the_command_line(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let operator = stage.operator()?;
    let drafts: Vec<_> = (0..6).map(|number| stage.draft(number).unordered_key("k0")).collect();
    let mut relay = stage.relay()?;
    stage.commit(&drafts[..2]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    relay.stop(PATIENCE).await?;
    stage.commit(&drafts[2..]).await?;
    stage.database.execute(MIX).await?;
    operator.done("pause --lane 0 --because", &["a \"test\"\nof texts"]).await?;
    operator.done("dead retry --all --yes --because", &["for the list of jobs"]).await?;
    let api = Api::start(&stage, MANY).await?;
    let remote = api.client("bob")?;
    let sent = drafts[0].id.to_string();
    let dead = drafts[2].id.to_string();
    let topic = stage.topic.name();
    let mut asked = BTreeSet::new();
    for (words, path) in questions(topic, &sent, &dead) {
        let expected = steady(operator.json(&words, &[]).await?);
        ensure!(
            expected
                .as_array()
                .is_none_or(|rows| !rows.is_empty() || words == "instances" || words.starts_with("inbox")),
            "{words}: nothing to compare"
        );
        ensure!(steady(remote.json(&words, &[]).await?) == expected, "--via: {words}: {expected:#}");
        for token in ["bob", "alice"] {
            let (status, answer) = api.get(&path, token).await?;
            ensure!(
                status == 200 && steady(answer.clone()) == expected,
                "{path}: {status} {answer:#}, not {expected:#}"
            );
        }
        let table = (operator.done(&words, &[]).await?, remote.done(&words, &[]).await?);
        ensure!(words == "status" || table.0 == table.1, "{words}:\n{}\n{}", table.0, table.1);
        asked.insert(path.split('?').next().unwrap_or_default().to_owned());
    }
    // It is no command of `--via`.
    let (status, findings) = api.get("doctor", "bob").await?;
    let is_of_queue = |it: &Value| it["finding"] == "messages_wait" || it["finding"] == "dead_messages";
    ensure!(findings.as_array().is_some_and(|all| all.iter().any(is_of_queue)), "{findings:#}");
    let severities = findings.as_array().context("no list of findings")?.iter().map(|it| &it["severity"]);
    ensure!(
        status == 200 && severities.clone().count() > 0 && severities.clone().all(|it| it != "problem"),
        "{findings:#}"
    );
    // The others give orders, or do not end.
    asked.extend(["doctor", "inbox/retry", "jobs/stop", "pause", "resume", "messages/tail"].map(str::to_owned));
    let page = include_str!("../../docs/api.md");
    let known: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("| `/")?.split('`').next().map(str::to_owned)).collect();
    ensure!(asked == known, "not asked: {:?}", known.difference(&asked).collect::<Vec<_>>());
    Ok(())
}

async fn an_order_over_the_api_is_recorded_with_its_caller(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    stage.commit(&[stage.draft(0), stage.draft(1)]).await?;
    stage.database.execute(MIX).await?;
    let api = Api::start(&stage, MANY).await?;
    let order = r#"{"all": true, "yes": true, "because": "the queue is bound", "rate": 10}"#;
    let (status, ordered) = api.post("dead/retry", "alice", order).await?;
    ensure!(status == 200 && ordered["job"].is_u64() && ordered["plan"]["messages"] == 1, "{status} {ordered:#}");
    let remote = api.client("alice")?;
    let paused = remote.run("pause --lane 3 --for 1h --actor mallory --because", &["a repair"]).await?;
    ensure!(paused.status.success(), "{}", String::from_utf8_lossy(&paused.stderr));
    remote.done("resume --lane 3 --because", &["it is done"]).await?;
    remote.done("delayed retry --all --yes --because", &["it is up"]).await?;
    let headers = "Authorization: Bearer front\r\nX-Relay-User: carol\r\nX-Relay-Role: operator\r\nContent-Type: \
                   application/json\r\n";
    let stop = format!(r#"{{"job": {}, "because": "enough"}}"#, ordered["job"]);
    let (status, stopped) = api.send("POST /api/v1/jobs/stop", headers, &stop).await?;
    ensure!(status == 200, "{status} {stopped:#}");
    let audit = stage.operator()?.json("audit", &[]).await?;
    let entries: Vec<_> =
        audit.as_array().into_iter().flatten().map(|it| [&it["action"], &it["actor"], &it["via"]]).collect();
    let expected = [["stop", "carol"], ["hurry", "alice"], ["resume", "alice"], ["pause", "alice"], ["retry", "alice"]];
    ensure!(
        entries
            == expected
                .map(|[action, actor]| [action, actor, "api"].map(Value::from))
                .each_ref()
                .map(|it| [&it[0], &it[1], &it[2]]),
        "{audit:#}"
    );
    let account = audit[0]["account"].as_str().unwrap_or_default();
    ensure!(account.starts_with("outbox_operator@"), "{audit:#}");
    let _relay = stage.relay()?;
    stage.database.wait_for(PATIENCE, OPEN).await?;
    let again = remote.run("jobs stop --because again", &[&ordered["job"].to_string()]).await?;
    let text = String::from_utf8_lossy(&again.stderr);
    ensure!(again.status.code() == Some(1) && text.contains("answers 422: job"), "{text}");
    Ok(())
}

async fn who_may_not_is_refused_and_nothing_is_ordered(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    stage.commit(&[stage.draft(0), stage.draft(1)]).await?;
    stage.database.execute(MIX).await?;
    let api = Api::start(&stage, MANY).await?;
    let order = r#"{"all": true, "yes": true, "because": "x"}"#;
    let json = "Content-Type: application/json\r\n";
    let alice = "Authorization: Bearer alice\r\n";
    for (expected, head, headers, body) in [
        (401, "POST /api/v1/dead/retry", json.to_owned(), order),
        (401, "POST /api/v1/dead/retry", format!("{json}Authorization: Bearer mallory\r\n"), order),
        (401, "POST /api/v1/dead/retry", format!("{json}X-Relay-User: alice\r\nX-Relay-Role: operator\r\n"), order),
        (403, "POST /api/v1/dead/retry", format!("{json}Authorization: Bearer bob\r\n"), order),
        (
            403,
            "POST /api/v1/messages/show",
            format!("{json}Authorization: Bearer bob\r\n"),
            r#"{"message": 1, "reveal": true, "because": "x"}"#,
        ),
        (405, "GET /api/v1/dead/retry?all=true&yes=true&because=x", alice.to_owned(), ""),
        (405, "DELETE /api/v1/dead/list", alice.to_owned(), ""),
        (415, "POST /api/v1/dead/retry", format!("{alice}Content-Type: text/plain\r\n"), order),
        (421, "POST /api/v1/dead/retry", format!("{json}{alice}Host: evil.example\r\n"), order),
        (400, "POST /api/v1/dead/retry", format!("{json}{alice}"), r#"{"yes": true, "because": "x"}"#),
        (400, "POST /api/v1/dead/retry", format!("{json}{alice}"), r#"{"all": true, "yes": true}"#),
        (400, "POST /api/v1/dead/retry", format!("{json}{alice}"), r#"{"reason": "x", "reasn": 1}"#),
        (400, "POST /api/v1/dead/retry", format!("{json}{alice}"), "[]"),
        (400, "POST /api/v1/dead/retry", format!("{json}{alice}"), r#"{"all": null}"#),
        (400, "POST /api/v1/dead/retry", format!("{json}{alice}"), r#"{"all": true, "actor": "bob"}"#),
        (400, "GET /api/v1/migrate/up", alice.to_owned(), ""),
        (400, "GET /api/v1/purge", alice.to_owned(), ""),
        (400, "GET /api/v1/status?config=/etc/passwd", alice.to_owned(), ""),
        (405, "PUT /api/v1/status", alice.to_owned(), ""),
        (404, "GET /api/v2/status", alice.to_owned(), ""),
        (413, "POST /api/v1/dead/retry", format!("{json}{alice}"), &"x".repeat(65_537)),
        (422, "POST /api/v1/resume", format!("{json}{alice}"), r#"{"lane": 9, "because": "x"}"#),
    ] {
        let (status, answer) = api.send(head, &headers, body).await?;
        ensure!(status == expected, "{head} {headers}: {status}, not {expected}: {answer:#}");
        ensure!(answer["error"].is_string(), "{head}: {answer:#}");
    }
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_jobs").await? == 0, "something was ordered");
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_audit").await? == 0, "something was recorded");
    let slow = Api::start(&stage, 2).await?;
    until(PATIENCE, "a refusal", async || {
        let (status, answer) = slow.get("controls", "mallory").await?;
        ensure!(status == 429, "{status} {answer}");
        Ok(())
    })
    .await?;
    let (status, _) = send(api.relay.port(), "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    ensure!(status == 200, "{status}");
    let far = client("mysql://nobody@127.0.0.1:1/nothing").run("status --via http://192.0.2.1", &[]).await?;
    let text = String::from_utf8_lossy(&far.stderr);
    ensure!(far.status.code() == Some(2) && text.contains("use https://"), "{text}");
    let other =
        client("mysql://nobody@127.0.0.1:1/nothing").run("migrate status --via http://127.0.0.1:1", &[]).await?;
    ensure!(other.status.code() == Some(2), "{other:?}");
    Ok(())
}

async fn a_socket_gives_the_same_answers_to_viewers(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    stage.commit(&[stage.draft(0), stage.draft(1)]).await?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("api.sock");
    let settings = Settings::new(&stage.database.url_as(Account::Operator)?);
    let settings = settings.set("api", "socket", socket.to_string_lossy().into_owned());
    let mut api = Relay::start_api(env!("CARGO_BIN_EXE_relay"), &settings)?;
    let mut remote = client("mysql://nobody@127.0.0.1:1/nothing");
    remote.flags = vec!["--via".to_owned(), format!("unix:{}", socket.display())];
    let answer = until(PATIENCE, "an answer of the API", async || remote.json("pending list", &[]).await).await?;
    ensure!(answer == stage.operator()?.json("pending list", &[]).await?, "{answer:#}");
    let refused = remote.run("pause --lane 3 --for 1h --because", &["x"]).await?;
    let text = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(1) && text.contains("answers 403: anonymous"), "{text}");
    api.stop(PATIENCE).await?;
    ensure!(!socket.exists(), "the socket is left behind");
    let gone = remote.run("pending list", &[]).await?;
    let text = String::from_utf8_lossy(&gone.stderr);
    ensure!(text.contains(&format!("nobody answers at {}", socket.display())), "{text}");
    Ok(())
}

/// Readers of a locked table wait for it.
const TWO_WAIT: &str = "SELECT COUNT(*) > 1 FROM information_schema.processlist \
    WHERE db = DATABASE() AND state LIKE 'Waiting for table%'";

async fn slow_requests_of_one_caller_keep_no_other_out(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let api = Api::start(&stage, MANY).await?;
    let mut admin = stage.database.plain().await?;
    sqlx::raw_sql("LOCK TABLES outbox_audit WRITE").execute(&mut admin).await?;
    let slow = join_all((0..40).map(|_| api.get("audit", "alice")));
    let quick = async {
        stage.database.wait_for(PATIENCE, TWO_WAIT).await?;
        let answer = api.get("controls", "bob").await?;
        sqlx::raw_sql("UNLOCK TABLES").execute(&mut admin).await?;
        anyhow::Ok(answer)
    };
    let (slow, quick) = tokio::join!(slow, quick);
    let (status, answer) = quick?;
    ensure!(status == 200, "{status} {answer:#}");
    // Two are answered at a time, and the last of many are refused at once.
    for answer in slow {
        let (status, answer) = answer?;
        ensure!(status == 200 || status == 429, "{status} {answer:#}");
    }
    Ok(())
}
