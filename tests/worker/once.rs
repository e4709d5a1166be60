//! One effect for each message.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::{on_both_databases, servers::Flavor};

use crate::stage::{Does, PATIENCE, Stage, Task, start, task, tasks};

on_both_databases!(
    three_workers_do_each_message_once_and_in_the_order_of_its_key,
    the_messages_of_a_batch_share_a_transaction_and_a_receipt,
    what_a_handler_enqueues_is_part_of_its_work,
    a_stop_lets_what_is_at_work_end_and_leaves_the_rest,
    a_stop_that_cannot_wait_gives_back_what_is_not_done,
    messages_that_were_claimed_behind_long_work_go_to_another_worker,
);

async fn three_workers_do_each_message_once_and_in_the_order_of_its_key(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let payload = |number: usize| if number.is_multiple_of(17) { "flaky" } else { "ok" };
    let sent: Vec<Task> = (0..300).map(|number| task(&format!("key {}", number % 7), payload(number))).collect();
    stage.commit(&sent).await?;
    let does = Does::new(&stage);
    let workers = [1, 1, 10].map(|batch| start(stage.worker().batch(batch), &does));
    stage.wait_until_drained().await?;
    for worker in workers {
        worker?.stop().await?;
    }
    stage.assert_done_once(&sent).await
}

async fn the_messages_of_a_batch_share_a_transaction_and_a_receipt(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let sent = tasks(100, 5, "ok");
    stage.commit(&sent).await?;
    let worker = start(stage.worker().batch(20), &Does::new(&stage))?;
    stage.wait_until_drained().await?;
    let published = worker.stop().await?.published_messages_total.with_label_values(&["worker"]).get();
    let marks = stage.database.number("SELECT COUNT(*) FROM outbox_sent").await?;
    ensure!(published == 100 && marks <= 20, "{published} messages have {marks} marks");
    stage.assert_done_once(&sent).await
}

async fn what_a_handler_enqueues_is_part_of_its_work(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    // Each message fails once after its enqueue.
    stage.commit(&tasks(10, 10, "tell")).await?;
    let worker = start(stage.worker(), &Does::new(&stage))?;
    stage.wait_until_drained().await?;
    worker.stop().await?;
    let messages = stage.database.number("SELECT COUNT(*) FROM outbox_messages").await?;
    let effects = stage.effects().await?.len();
    ensure!(messages == 20 && effects == 20, "{messages} messages, {effects} effects");
    Ok(())
}

async fn a_stop_that_cannot_wait_gives_back_what_is_not_done(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let sent = [vec![task("a", "ok"), task("b", "wait")], tasks(8, 8, "ok")].concat();
    stage.commit(&sent).await?;
    let does = Does::new(&stage);
    let hasty = stage.worker().batch(5).concurrency(2).configure(|config| config.relay.stop_deadline = Duration::ZERO);
    let worker = start(hasty, &does)?;
    does.wait_for_waiting(1).await?;
    // A claim whose confirmation was lost on its way to the worker.
    let unknown =
        "INSERT INTO outbox_claims (lane, owner, lease_token, lease_until, claimed_at, message_ids, key_hashes)
        SELECT lane, owner, lease_token + 1, lease_until, claimed_at, '[]', '' FROM outbox_claims LIMIT 1";
    stage.database.execute(unknown).await?;
    worker.stop().await?;
    let claims = stage.database.number("SELECT COUNT(*) FROM outbox_claims").await?;
    ensure!(claims == 0, "{claims} claims are left");
    does.gate.close();
    let next = start(stage.worker(), &does)?;
    stage.wait_until_drained().await?;
    next.stop().await?;
    stage.assert_done_once(&sent).await
}

async fn a_stop_lets_what_is_at_work_end_and_leaves_the_rest(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let sent = tasks(30, 30, "wait");
    stage.commit(&sent).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker().concurrency(4), &does)?;
    does.wait_for_waiting(4).await?;
    worker.ask_to_stop();
    does.gate.close();
    worker.stop().await?;
    let effects = stage.effects().await?.len();
    let claims = stage.database.number("SELECT COUNT(*) FROM outbox_claims").await?;
    // Work that ends before the stop is seen may let other work begin.
    ensure!((4..30).contains(&effects) && claims == 0, "{effects} effects, {claims} claims");
    let next = start(stage.worker(), &does)?;
    stage.wait_until_drained().await?;
    next.stop().await?;
    stage.assert_done_once(&sent).await
}

/// The first worker claims ahead, because the work before was short.
async fn messages_that_were_claimed_behind_long_work_go_to_another_worker(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let quick = tasks(300, 300, "ok");
    let (before, behind) = quick.split_at(150);
    let sent = [before, &[task("long", "wait")], behind].concat();
    stage.commit(&sent).await?;
    let does = Does::new(&stage);
    let worker = || stage.worker().concurrency(1).deadline(PATIENCE);
    let first = start(worker(), &does)?;
    does.wait_for_waiting(1).await?;
    let second = start(worker(), &does)?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 300 FROM test_effects").await?;
    does.gate.close();
    stage.wait_until_drained().await?;
    let first = first.stop().await?;
    second.stop().await?;
    let done = first.published_messages_total.with_label_values(&["worker"]).get();
    let claimed = first.claimed_messages_total.get();
    ensure!(claimed > done, "it has claimed {claimed}, done {done}, and nothing was released");
    ensure!(quick.iter().all(|task| does.tries(task) == 1), "a message was tried twice");
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_attempts").await? == 0, "a release spent an attempt");
    stage.assert_done_once(&sent).await
}
