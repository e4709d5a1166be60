//! `relay replay`, with the account of `deploy/grants/operator.sql`.

#![expect(clippy::indexing_slicing, reason = "a missing value of JSON is null")]

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use outbox_core::{REPLAY_HEADER, Uuid};
use testkit::{consume::Broker, ledger::Draft, load, on_both_databases, servers::Flavor};

use crate::stage::{BROKERS, PATIENCE, Stage};

on_both_databases!(
    sent_messages_arrive_again_once_with_a_mark_and_in_order,
    replays_go_one_after_the_other_and_take_a_message_once,
    what_cannot_be_replayed_is_left_out,
    what_only_a_replay_sent_in_that_time_does_not_come_behind_later_messages,
    lanes_of_workers_are_left_out_unless_they_are_named,
    a_message_whose_first_receipt_is_about_to_be_purged_is_left_out,
);

/// The marks of a message's arrivals; 0 for none.
async fn marks(stage: &mut Stage) -> Result<BTreeMap<Uuid, Vec<u64>>> {
    let mut marks: BTreeMap<Uuid, Vec<u64>> = BTreeMap::new();
    for arrival in stage.topic.read().await? {
        let mark = arrival.headers.iter().find(|(name, _)| name == REPLAY_HEADER);
        let mark = mark.map_or(Ok(0), |(_, job)| job.parse())?;
        marks.entry(arrival.id).or_default().push(mark);
    }
    // Partitions are read one after the other.
    for marks in marks.values_mut() {
        marks.sort_unstable();
    }
    Ok(marks)
}

/// Orders a replay; returns the number of its job.
async fn order(stage: &Stage, words: &str, arguments: &[&str]) -> Result<u64> {
    let because = ["--yes", "--because", "the index is lost"];
    let ordered = stage.operator()?.json(words, &[arguments, &because].concat()).await?;
    ordered["job"].as_u64().with_context(|| format!("{ordered:#}"))
}

async fn wait_for_jobs(stage: &Stage) -> Result<()> {
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) = 0 FROM outbox_jobs WHERE ended_at IS NULL").await?;
    stage.database.wait_until_drained(PATIENCE).await
}

async fn sent_messages_arrive_again_once_with_a_mark_and_in_order(flavor: Flavor) -> Result<()> {
    for broker in BROKERS {
        let mut stage = Stage::new(flavor, broker).await?.patient();
        let _relay = stage.relay()?;
        let drafts: Vec<_> = (0..60).map(|n| stage.draft(n).key(format!("k{}", n % 3), n as u64)).collect();
        let (replayed, others) = drafts.split_at(40);
        for drafts in replayed.chunks(7) {
            stage.commit(drafts).await?;
        }
        let lane = |message: outbox_core::Message| message.lane(1);
        load::commit(&stage.database, &stage.ledger, others, lane).await?;
        stage.database.wait_until_drained(PATIENCE).await?;

        let plan = stage.operator()?.json("replay --lane 0", &[]).await?;
        ensure!(plan["plan"]["messages"] == 40 && plan["job"].is_null(), "{plan:#}");
        ensure!(stage.database.number("SELECT COUNT(*) FROM outbox_jobs").await? == 0, "a plan ordered a job");
        let job = order(&stage, "replay --lane 0 --rate 15", &[]).await?;
        wait_for_jobs(&stage).await?;
        let found = marks(&mut stage).await?;
        for draft in &drafts {
            let expected = if replayed.iter().any(|it| it.id == draft.id) { &[0, job][..] } else { &[0] };
            ensure!(found[&draft.id] == expected, "{broker:?}: {:?} and not {expected:?}", found[&draft.id]);
        }
        // In the order of their keys: a message's number is in its payload.
        let mut last = BTreeMap::new();
        for arrival in
            stage.topic.read().await?.iter().filter(|it| it.headers.iter().any(|(name, _)| name == REPLAY_HEADER))
        {
            let payload = String::from_utf8(arrival.payload.clone().unwrap_or_default())?;
            let number: u64 = payload.rsplit(' ').next().unwrap_or_default().parse()?;
            ensure!(
                last.insert(arrival.key.clone(), number).is_none_or(|last| last < number),
                "{broker:?}: {payload} is late"
            );
        }
        let one = order(&stage, "replay", &[&drafts[50].id.to_string()]).await?;
        wait_for_jobs(&stage).await?;
        ensure!(marks(&mut stage).await?[&drafts[50].id] == [0, one]);
        let audit = stage.operator()?.json("audit", &[]).await?;
        let found = [&audit[0]["action"], &audit[0]["messages"], &audit[0]["reason"]].map(ToString::to_string);
        ensure!(found == ["\"replay\"", "1", "\"the index is lost\""], "{audit:#}");
    }
    Ok(())
}

async fn replays_go_one_after_the_other_and_take_a_message_once(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let mut relay = stage.relay()?;
    for number in 0..10_u16 {
        let draft = stage.draft(number.into());
        let lane = number % 3;
        load::commit(&stage.database, &stage.ledger, &[draft], |message| message.lane(lane)).await?;
    }
    stage.database.wait_until_drained(PATIENCE).await?;
    relay.stop(PATIENCE).await?;
    // As if each message had been sent twice.
    let twice = "INSERT INTO outbox_sent (claim_id, lease_token, lane, owner, claimed_at, sent_at, message_ids, \
                 receipts) \
                 SELECT claim_id + 1000, lease_token, lane, owner, claimed_at, sent_at, message_ids, receipts \
                 FROM outbox_sent";
    stage.database.execute(twice).await?;
    let first = order(&stage, "replay --all --rate 3", &[]).await?;
    // Between its batches the first one is due later than all that wait for it.
    for _ in 0..11 {
        order(&stage, "replay --all", &[]).await?;
    }
    let _relays = [stage.relay()?, stage.relay()?];
    let is_later_begun =
        format!("SELECT COUNT(*) > 0 FROM outbox_jobs WHERE job_id > {first} AND (done > 0 OR ended_at IS NOT NULL)");
    stage.database.wait_for(PATIENCE, &is_later_begun).await?;
    let open = format!("SELECT COUNT(*) FROM outbox_jobs WHERE job_id = {first} AND ended_at IS NULL");
    ensure!(stage.database.number(&open).await? == 0, "a later replay began before the first one had ended");
    wait_for_jobs(&stage).await?;
    // Each later one leaves out what the one before it has not sent yet.
    let found = marks(&mut stage).await?;
    let is_once = |marks: &Vec<u64>| marks.starts_with(&[0, first]) && marks.is_sorted_by(|one, next| one < next);
    ensure!(found.len() == 10 && found.values().all(is_once), "{found:?}");
    let arrived = found.values().map(|marks| marks.len() - 1).sum::<usize>();
    let done = stage.database.number("SELECT CAST(SUM(done) AS SIGNED) FROM outbox_jobs").await?;
    ensure!(usize::try_from(done)? == arrived, "the jobs counted {done} messages, {arrived} arrived: {found:?}");
    let planned = "SELECT COUNT(*) FROM outbox_audit WHERE job_id IS NOT NULL AND messages = 10";
    ensure!(stage.database.number(planned).await? == 12, "a plan did not count 10 messages");
    Ok(())
}

/// A replay follows the receipts. That of an earlier replay comes after those of later messages of its key.
async fn what_only_a_replay_sent_in_that_time_does_not_come_behind_later_messages(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let _relay = stage.relay()?;
    let drafts: Vec<_> = (1..=4).map(|number| stage.draft(number).key("a", number as u64)).collect();
    stage.commit(&drafts[..2]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    stage.database.execute("UPDATE outbox_sent SET sent_at = sent_at - INTERVAL 1 HOUR").await?;
    stage.commit(&drafts[2..]).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let mut single = Vec::new();
    for _ in 0..2 {
        single.push(order(&stage, "replay", &[&drafts[0].id.to_string()]).await?);
        wait_for_jobs(&stage).await?;
    }
    let plan = stage.operator()?.json("replay --since 30m", &[]).await?;
    ensure!(plan["plan"]["messages"] == 2 && plan["plan"]["left_out"]["only a replay sent it then"] == 1, "{plan:#}");
    let late = order(&stage, "replay --since 30m", &[]).await?;
    wait_for_jobs(&stage).await?;
    let all = order(&stage, "replay --all", &[]).await?;
    wait_for_jobs(&stage).await?;
    let found = marks(&mut stage).await?;
    let expected = [vec![0, single[0], single[1], all], vec![0, all], vec![0, late, all], vec![0, late, all]];
    for (draft, expected) in drafts.iter().zip(expected) {
        ensure!(found[&draft.id] == expected, "{:?} and not {expected:?}", found[&draft.id]);
    }
    Ok(())
}

async fn what_cannot_be_replayed_is_left_out(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let mut relay = stage.relay()?;
    let drafts: Vec<_> = (0..5).map(|n| stage.draft(n)).collect();
    for draft in &drafts {
        stage.commit(std::slice::from_ref(draft)).await?;
        stage.database.wait_until_drained(PATIENCE).await?;
    }
    relay.stop(PATIENCE).await?;
    let of = |draft: &Draft| format!("SELECT id FROM outbox_messages WHERE message_id = X'{}'", draft.id.simple());
    let mut ids = Vec::new();
    for draft in &drafts {
        ids.push(stage.database.number(&of(draft).replace("SELECT id", "SELECT CAST(id AS SIGNED)")).await?);
    }
    let change = format!(
        "UPDATE outbox_sent SET sent_at = sent_at - INTERVAL 167 HOUR WHERE message_ids = '[{}]'; \
         INSERT INTO outbox_pending (lane, id) VALUES (0, {}); DELETE FROM outbox_messages WHERE id = {}",
        ids[0], ids[1], ids[2]
    );
    stage.database.execute(&change).await?;
    let operator = stage.operator()?;
    let plan = operator.json("replay --all", &[]).await?;
    let left_out = [("its retention ends", 1), ("it is unsent again, or was deleted", 2)];
    let is_told = left_out.iter().all(|(why, messages)| plan["plan"]["left_out"][*why] == *messages);
    ensure!(is_told && plan["plan"]["messages"] == 2, "{plan:#}");
    let since = operator.json("replay --since 1h --topic nothing", &[]).await?;
    ensure!(since["plan"]["messages"] == 0, "{since:#}");
    let until = operator.json("replay --until 1h", &[]).await?;
    ensure!(until["plan"]["messages"] == 0 && until["plan"]["left_out"]["its retention ends"] == 1, "{until:#}");

    let unsent = stage.draft(9);
    stage.commit(std::slice::from_ref(&unsent)).await?;
    for (code, words, part) in [
        (2, "replay".to_owned(), "--all"),
        (2, "replay --since yesterday".to_owned(), "2h"),
        (2, "replay --all --yes".to_owned(), "--because"),
        (1, format!("replay {}", unsent.id), "was not sent"),
        (1, format!("replay {}", Uuid::now_v7()), "no message has this id"),
    ] {
        let output = operator.run(&words, &[]).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(code) && text.contains(part), "{words}: {text}");
    }
    stage.database.execute("DELETE FROM outbox_pending").await?;
    order(&stage, "replay --all", &[]).await?;
    let _relay = stage.relay()?;
    wait_for_jobs(&stage).await?;
    let found = marks(&mut stage).await?;
    let again = |n: usize| found[&drafts[n].id].len();
    ensure!([0, 1, 2, 3, 4].map(again) == [1, 2, 1, 2, 2], "{found:?}");
    Ok(())
}

/// Workers have no inbox: a replay would repeat each effect.
async fn lanes_of_workers_are_left_out_unless_they_are_named(flavor: Flavor) -> Result<()> {
    let mut stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let mut relay = stage.relay()?;
    let [one, other] = [0, 1].map(|lane| stage.draft(lane));
    stage.commit(std::slice::from_ref(&one)).await?;
    load::commit(&stage.database, &stage.ledger, std::slice::from_ref(&other), |message| message.lane(1)).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    relay.stop(PATIENCE).await?;
    stage.database.execute("UPDATE outbox_head SET kind = 'worker' WHERE lane = 1").await?;
    let operator = stage.operator()?;
    let why = "its lane belongs to workers, which have no inbox: name it with --lane";
    for (words, messages, left_out) in [
        ("replay --all".to_owned(), 1, 1),
        (format!("replay {}", other.id), 0, 1),
        ("replay --since 1h".to_owned(), 1, 1),
    ] {
        let plan = &operator.json(&words, &[]).await?["plan"];
        let is_told = plan["left_out"][why] == left_out && plan["worker_lanes"].as_array().is_some_and(Vec::is_empty);
        ensure!(is_told && plan["messages"] == messages, "{words}: {plan:#}");
    }
    for words in ["replay --lane 1".to_owned(), format!("replay {} --lane 1", other.id)] {
        let plan = &operator.json(&words, &[]).await?["plan"];
        ensure!(plan["messages"] == 1 && plan["worker_lanes"][0] == 1, "{words}: {plan:#}");
    }
    order(&stage, "replay --all", &[]).await?;
    // As if a relay served the lane again: it would send what the job has put there.
    stage.database.execute("UPDATE outbox_head SET kind = 'relay' WHERE lane = 1").await?;
    let _relay = stage.relay()?;
    wait_for_jobs(&stage).await?;
    let found = marks(&mut stage).await?;
    ensure!(found[&one.id].len() == 2 && found[&other.id] == [0], "{found:?}");
    Ok(())
}

/// The purge deletes a message with any of its receipts.
async fn a_message_whose_first_receipt_is_about_to_be_purged_is_left_out(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?.patient();
    let _relay = stage.relay()?;
    let draft = stage.draft(1);
    stage.commit(std::slice::from_ref(&draft)).await?;
    stage.database.wait_until_drained(PATIENCE).await?;
    let id = draft.id.to_string();
    order(&stage, "replay", &[&id]).await?;
    wait_for_jobs(&stage).await?;
    let age = "UPDATE outbox_sent SET sent_at = sent_at - INTERVAL 167 HOUR ORDER BY receipt_id LIMIT 1";
    stage.database.execute(age).await?;
    let plan = stage.operator()?.json("replay", &[&id]).await?;
    ensure!(plan["plan"]["messages"] == 0 && plan["plan"]["left_out"]["its retention ends"] == 1, "{plan:#}");
    Ok(())
}
