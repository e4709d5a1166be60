//! Handlers that fail, and the outcomes of their neighbours.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_core::sqlx;
use outbox_relay::{
    operate::why::{self, Reference},
    settings::AfterDead,
};
use testkit::{
    database::Database,
    on_both_databases,
    servers::{Flavor, MySqlOptions},
};

use crate::stage::{Does, PATIENCE, Stage, Task, start, task, tasks};

on_both_databases!(
    what_fails_is_tried_again_and_then_dead_while_others_flow,
    what_ends_its_transaction_is_tried_again_and_its_neighbours_are_done_once,
    what_a_handler_commits_itself_stays_and_is_done_again,
    what_a_handler_leaves_in_its_session_meets_no_other,
    no_message_is_lost_in_a_session_that_a_handler_has_left,
    a_failure_that_passes_costs_no_attempt,
    a_killed_statement_costs_no_attempt,
    a_connection_that_ends_again_and_again_at_one_message_spends_its_attempts,
    a_handler_puts_a_message_off_for_no_attempt_and_at_most_a_day,
    a_dead_message_can_hold_its_key_and_no_other,
);

async fn what_fails_is_tried_again_and_then_dead_while_others_flow(flavor: Flavor) -> Result<()> {
    for batch in [1, 5] {
        let stage = Stage::new(flavor).await?;
        let bad = [task("a", "never"), task("b", "refuse")];
        let fine =
            [tasks(20, 4, "ok"), vec![task("a", "ok"), task("b", "ok"), task("a", "flaky"), task("c", "nested")]]
                .concat();
        stage.commit(&[bad.as_slice(), fine.as_slice()].concat()).await?;
        let does = Does::new(&stage);
        let worker = start(stage.worker().batch(batch), &does)?;
        stage.wait_until_drained().await?;
        let metrics = worker.stop().await?;
        let sql = "SELECT reason, attempts, error FROM outbox_dead ORDER BY id";
        let dead: Vec<(String, u16, String)> = sqlx::query_as(sql).fetch_all(&stage.pool).await?;
        let dead: Vec<_> = dead.iter().map(|it| (it.0.as_str(), it.1, it.2.as_str())).collect();
        let expected = [("attempts_exhausted", 3, "it never works"), ("refused", 1, "it is not understood")];
        assert_eq!(dead, expected);
        let counted = |reason: &str| metrics.dead_messages_total.with_label_values(&[reason]).get();
        assert_eq!([counted("attempts_exhausted"), counted("refused")], [1, 1]);
        assert_eq!(bad.each_ref().map(|it| does.tries(it)), [3, 1]);
        stage.assert_done_once(&fine).await?;
    }
    Ok(())
}

async fn what_ends_its_transaction_is_tried_again_and_its_neighbours_are_done_once(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let ends = ["ended", "panic", "slow", "broken"].map(|payload| task("a", payload));
    let sent = [tasks(5, 3, "ok"), ends.to_vec(), tasks(5, 3, "ok")].concat();
    stage.commit(&sent).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker().batch(20).deadline(Duration::from_secs(2)), &does)?;
    stage.wait_until_drained().await?;
    worker.stop().await?;
    for task in &ends {
        ensure!(does.tries(task) >= 2, "a message that ends its transaction was tried once");
    }
    stage.assert_done_once(&sent).await
}

async fn what_a_handler_leaves_in_its_session_meets_no_other(flavor: Flavor) -> Result<()> {
    for batch in [1, 4] {
        let stage = Stage::new(flavor).await?;
        let leaves = ["leaves", "strict", "leaves and fails", "strict", "leaves"].map(|payload| task("a", payload));
        let sent = [leaves.as_slice(), &tasks(20, 4, "strict")].concat();
        stage.commit(&sent).await?;
        let does = Does::new(&stage);
        let worker = start(stage.worker().batch(batch).concurrency(1), &does)?;
        stage.wait_until_drained().await?;
        worker.stop().await?;
        assert_eq!(leaves.each_ref().map(|it| does.tries(it)), [1, 1, 2, 1, 1]);
        stage.assert_done_once(&sent).await?;
    }
    Ok(())
}

/// 500 other messages are read in the session that the first handler has left.
async fn no_message_is_lost_in_a_session_that_a_handler_has_left(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let sent = [vec![task("a", "leaves")], tasks(500, 500, "ok")].concat();
    stage.commit(&sent).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker().batch(64).concurrency(2), &does)?;
    stage.wait_until_drained().await?;
    worker.stop().await?;
    stage.assert_done_once(&sent).await
}

/// The server ends transactions in which nothing happens for a second. A handler waits for something else.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_handler_is_not_ended_by_the_servers_limit_for_idle_transactions() -> Result<()> {
    let server =
        MySqlOptions::new(Flavor::MariaDb).buffer_pool_mib(128).arg("--idle-transaction-timeout=1").start().await?;
    let stage = Stage::on(Database::create_on(&server.url()).await?).await?;
    let slow = task("a", "wait");
    stage.commit(std::slice::from_ref(&slow)).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker().deadline(PATIENCE), &does)?;
    does.wait_for_waiting(1).await?;
    // The server makes the list of transactions anew if nobody has read it for a tenth of a second.
    let idle = "SELECT COUNT(*) + SLEEP(0.15) > 0 OR (SELECT COUNT(*) = 0 FROM outbox_claims) \
                FROM information_schema.processlist \
                WHERE user = 'outbox_worker' AND command = 'Sleep' AND time_ms > 2500 AND \
                id IN (SELECT trx_mysql_thread_id FROM information_schema.innodb_trx)";
    stage.database.wait_for(PATIENCE, idle).await?;
    does.gate.close();
    stage.wait_until_drained().await?;
    worker.stop().await?;
    assert_eq!(does.tries(&slow), 1);
    stage.assert_done_once(&[slow]).await
}

async fn what_a_handler_commits_itself_stays_and_is_done_again(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let sent = [task("a", "ok"), task("b", "commits"), task("c", "ok")];
    stage.commit(&sent).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker().batch(3), &does)?;
    stage.wait_until_drained().await?;
    worker.stop().await?;
    let effects = stage.effects().await?;
    let done = |task: &Task| effects.iter().filter(|id| **id == task.id).count();
    assert_eq!(sent.each_ref().map(done), [2, 2, 1]);
    assert_eq!(does.tries(&sent[1]), 2, "the commit was not noticed");
    Ok(())
}

async fn a_failure_that_passes_costs_no_attempt(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let sent = [task("a", "passing"), task("a", "ok"), task("b", "ok")];
    stage.commit(&sent).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker(), &does)?;
    stage.wait_until_drained().await?;
    let parked = worker.stop().await?.retries_scheduled_total.with_label_values(&["parked"]).get();
    assert_eq!((does.tries(&sent[0]), parked), (7, 6));
    stage.assert_done_once(&sent).await
}

async fn a_killed_statement_costs_no_attempt(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let sent = [tasks(4, 4, "killed"), tasks(4, 4, "ok")].concat();
    stage.commit(&sent).await?;
    let worker = start(stage.worker(), &Does::new(&stage))?;
    stage.wait_until_drained().await?;
    worker.stop().await?;
    assert_eq!(stage.database.number("SELECT COUNT(*) FROM outbox_dead").await?, 0);
    stage.assert_done_once(&sent).await
}

/// Five losses are free; then each spends one of three attempts. The first of several messages that no other outlives
/// pays, too.
async fn a_connection_that_ends_again_and_again_at_one_message_spends_its_attempts(flavor: Flavor) -> Result<()> {
    for (payload, others) in [("hangs up", 0), ("is cut", 5)] {
        let stage = Stage::new(flavor).await?;
        let lost = task("a", payload);
        let fine = [tasks(others, 5, "ok"), vec![task("a", "ok")]].concat();
        stage.commit(&[std::slice::from_ref(&lost), fine.as_slice()].concat()).await?;
        let does = Does::new(&stage);
        let worker = start(stage.worker(), &does)?;
        stage.wait_until_drained().await?;
        worker.stop().await?;
        assert_eq!(does.tries(&lost), 8, "{payload}");
        let mut db = stage.database.connect().await?;
        let why = why::why(&mut db, Reference::Uuid(lost.id)).await?;
        assert_eq!((why.state, &*why.cause, why.attempts), ("dead", "attempts_exhausted", Some(3)));
        ensure!(why.why.contains("ended 8 times in a row at this message, and not at others"), "{}", why.why);
        stage.assert_done_once(&fine).await?;
    }
    Ok(())
}

async fn a_handler_puts_a_message_off_for_no_attempt_and_at_most_a_day(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let sent = [task("a", "later"), task("a", "ok"), task("b", "ok")];
    let held = [task("c", "never now"), task("c", "ok")];
    stage.commit(&[sent.as_slice(), held.as_slice()].concat()).await?;
    let does = Does::new(&stage);
    let worker = start(stage.worker(), &does)?;
    let decided = "SELECT (SELECT COUNT(*) FROM test_effects) = 3 AND (SELECT COUNT(*) FROM outbox_delayed) = 2 \
                   AND (SELECT COUNT(*) FROM outbox_claims) = 0";
    stage.database.wait_for(PATIENCE, decided).await?;
    let snoozed = worker.stop().await?.retries_scheduled_total.with_label_values(&["snoozed"]).get();
    assert_eq!((does.tries(&sent[0]), snoozed), (7, 7));
    assert_eq!((does.tries(&held[0]), does.tries(&held[1])), (1, 0));
    stage.assert_done_once(&sent).await?;
    let delayed = "SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'snoozed' AND attempts = 0 AND due_at \
                   BETWEEN UTC_TIMESTAMP() + INTERVAL 23 HOUR AND UTC_TIMESTAMP() + INTERVAL 24 HOUR";
    assert_eq!(stage.database.number(delayed).await?, 1);
    Ok(())
}

async fn a_dead_message_can_hold_its_key_and_no_other(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    let held = tasks(2, 1, "ok");
    let free = [task("b", "ok"), task("b", "ok")];
    let dead = [task("key 0", "refuse")];
    stage.commit(&[dead.as_slice(), held.as_slice(), free.as_slice()].concat()).await?;
    let worker = start(stage.worker().after_dead(AfterDead::Block), &Does::new(&stage))?;
    let decided = "SELECT (SELECT COUNT(*) FROM test_effects) = 2 AND (SELECT COUNT(*) FROM outbox_claims) = 0 \
                   AND (SELECT COUNT(*) FROM outbox_delayed WHERE reason = 'behind') = 2";
    stage.database.wait_for(PATIENCE, decided).await?;
    stage.assert_done_once(&free).await?;
    // The operator discards it: the key goes on.
    let discard = "UPDATE outbox_dead SET holds_key = 0";
    stage.database.execute(discard).await?;
    stage.wait_until_drained().await?;
    worker.stop().await?;
    ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_dead").await? == 1, "the dead message is kept");
    stage.assert_done_once(&[free.as_slice(), held.as_slice()].concat()).await
}
