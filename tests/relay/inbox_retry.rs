//! `relay inbox retry`: a consumer carries out the order of an operator.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use anyhow::{Result, ensure};
use outbox_consumer::{Failure, Handler, Retry, handler_fn, rabbitmq};
use outbox_core::sqlx::{self, Connection as _, MySqlPool};
use testkit::{
    accounts::Account,
    consume::{Broker, Sending},
    on_both_databases,
    servers::Flavor,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::stage::{PATIENCE, Stage};

on_both_databases!(a_running_consumer_retries_what_is_dead_at_the_order_of_an_operator);

/// Writes an effect, and then fails if it is broken or the message never works.
fn handler(is_broken: bool) -> impl Handler {
    handler_fn(move |tx, message| {
        Box::pin(async move {
            let sql = "INSERT INTO test_effects (message_id) VALUES (?)";
            sqlx::query(sql).bind(message.id.as_bytes().as_slice()).execute(tx).await?;
            match message.contents.payload.as_deref() {
                _ if is_broken => Err(Failure::dead("the tax service is away")),
                Some(b"panics") => {
                    assert!(is_broken, "a bug of the handler, on purpose");
                    Ok(())
                }
                Some(b"fails") => Err(Failure::dead("it never works")),
                _ => Ok(()),
            }
        })
    })
}

async fn start(stage: &Stage, is_broken: bool, stop: &CancellationToken) -> Result<JoinHandle<Result<()>>> {
    let pool = MySqlPool::connect(&stage.database.url_as(Account::Service)?).await?;
    let name = stage.topic.name();
    let consumer = rabbitmq::Consumer::new(stage.topic.address(), name, "billing", pool)?;
    let once = Retry::new(std::time::Duration::ZERO, std::time::Duration::ZERO, 1);
    let run = consumer.retry(once).run(handler(is_broken), stop.clone().cancelled_owned());
    Ok(tokio::spawn(async move { Ok(run.await?) }))
}

async fn a_running_consumer_retries_what_is_dead_at_the_order_of_an_operator(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::RabbitMq).await?;
    let sent = ["fails", "panics", "works", "works"].map(|payload| Sending::new("key", payload));
    stage.topic.send(&sent).await?;
    let stop = CancellationToken::new();
    let consumer = start(&stage, true, &stop).await?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 4 FROM inbox_dead").await?;
    stop.cancel();
    consumer.await??;

    let operator = stage.operator()?;
    let because = ["--because", "the tax service is back"];
    let last = sent[3].id.unwrap_or_default().to_string();
    let one = operator.json("inbox retry --consumer billing", &[&[last.as_str()], &because[..]].concat()).await?;
    let all = operator.json("inbox retry --consumer billing --all", &because).await?;
    ensure!((&one["messages"], &all["messages"]) == (&1.into(), &4.into()), "{one:#} {all:#}");
    let none = operator.run("inbox retry --consumer shipping --all", &because).await?;
    ensure!(!none.status.success() && String::from_utf8_lossy(&none.stderr).contains("relay inbox dead"));
    let waiting = operator.json("inbox retries", &[]).await?;
    ensure!(waiting[0]["state"] == "waits for the consumer" && waiting[0]["retry"] == all["retry"], "{waiting:#}");

    // Another transaction works on one of them.
    let mut other = stage.database.plain().await?;
    let sql = "SELECT 1 FROM inbox_dead WHERE consumer = 'billing' AND message_id = ? FOR UPDATE";
    let mut held = other.begin().await?;
    sqlx::query(sql).bind(sent[2].id.unwrap_or_default().as_bytes().as_slice()).execute(&mut *held).await?;
    let stop = CancellationToken::new();
    let consumer = start(&stage, false, &stop).await?;
    let ended = "SELECT COUNT(*) = 0 FROM inbox_retries WHERE ended_at IS NULL";
    stage.database.wait_for(PATIENCE, ended).await?;
    let done = operator.json("inbox retries", &[]).await?;
    let counts = |order: usize| [&done[order]["processed"], &done[order]["failed"]].map(ToString::to_string);
    ensure!(counts(1) == ["1", "0"] && counts(0) == ["0", "3"] && done[0]["state"] == "done", "{done:#}");
    held.rollback().await?;
    operator.json("inbox retry --consumer billing --all", &because).await?;
    stage.database.wait_for(PATIENCE, ended).await?;
    let done = operator.json("inbox retries", &[]).await?;
    ensure!([&done[0]["processed"], &done[0]["failed"]].map(ToString::to_string) == ["1", "2"], "{done:#}");
    ensure!(stage.database.number("SELECT COUNT(*) FROM test_effects").await? == 2, "effects");
    ensure!(stage.database.number("SELECT COUNT(*) FROM inbox_dead").await? == 2, "dead messages");
    let audit = operator.json("audit", &[]).await?;
    let found = [&audit[0]["action"], &audit[0]["target"], &audit[0]["messages"]].map(ToString::to_string);
    ensure!(found == ["\"inbox-retry\"", "\"billing\"", "3"], "{audit:#}");
    stop.cancel();
    consumer.await?
}
