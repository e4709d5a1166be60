//! The numbers of a sequenced key are followed in the transaction of the work.

use anyhow::Result;
use outbox_core::{
    Inbox, InboxError, Sequence, SequenceNumber,
    sqlx::{self, Connection as _},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    a_gap_a_late_number_and_a_repetition_are_seen,
    what_is_rolled_back_was_not_noted,
    gaps_that_cannot_be_read_are_forgotten,
    keys_topics_and_consumers_are_counted_each_by_itself,
    new_keys_do_not_wait_for_their_neighbours,
    a_new_epoch_begins_a_key_anew_and_what_comes_from_an_old_one_is_late,
);

async fn a_gap_a_late_number_and_a_repetition_are_seen(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let inbox = Inbox::new("c")?;
    let mut connection = database.connect().await?;
    let steps = [
        (1_u64, Sequence::Next),
        (2, Sequence::Next),
        (5, Sequence::Gap { expected: 3 }),
        (4, Sequence::Late),
        (4, Sequence::Repeated),
        (6, Sequence::Next),
        (3, Sequence::Late),
    ];
    for (number, expected) in steps {
        let mut tx = connection.begin().await?;
        assert_eq!(inbox.follow(&mut tx, "t", b"k", number).await?, expected, "{number}");
        tx.commit().await?;
    }
    let outside = inbox.follow(&mut connection, "t", b"k", 7_u64).await;
    assert!(matches!(outside, Err(InboxError::NotInTransaction)));
    Ok(())
}

async fn what_is_rolled_back_was_not_noted(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let inbox = Inbox::new("c")?;
    let mut connection = database.connect().await?;
    for (number, expected, commits) in [
        (1_u64, Sequence::Next, true),
        (2, Sequence::Next, false),
        (9, Sequence::Gap { expected: 2 }, false),
        (2, Sequence::Next, true),
    ] {
        let mut tx = connection.begin().await?;
        assert_eq!(inbox.follow(&mut tx, "t", b"k", number).await?, expected, "{number}");
        if commits { tx.commit().await? } else { tx.rollback().await? }
    }
    Ok(())
}

/// Edited by hand: the key goes on.
async fn gaps_that_cannot_be_read_are_forgotten(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    for (consumer, missing) in [("a", "not JSON"), ("b", ""), ("c", "{}"), ("d", "[[2]]"), ("e", "[[-2, 4]]")] {
        let inbox = Inbox::new(consumer)?;
        for (number, expected) in [
            (1_u64, Sequence::Next),
            (5, Sequence::Gap { expected: 2 }),
            (3, Sequence::Repeated),
            (6, Sequence::Next),
            (8, Sequence::Gap { expected: 7 }),
            (7, Sequence::Late),
        ] {
            let mut tx = connection.begin().await?;
            assert_eq!(inbox.follow(&mut tx, "t", b"k", number).await?, expected, "{missing}: {number}");
            tx.commit().await?;
            if number == 5 {
                let edit = format!("UPDATE inbox_sequence SET missing = '{missing}' WHERE consumer = '{consumer}'");
                database.execute(&edit).await?;
            }
        }
    }
    Ok(())
}

async fn keys_topics_and_consumers_are_counted_each_by_itself(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    for number in [1_u64, 2] {
        for (consumer, topic, key) in [("c", "t", "k"), ("d", "t", "k"), ("c", "u", "k"), ("c", "t", "l")] {
            let seen = Inbox::new(consumer)?.follow(&mut tx, topic, key.as_bytes(), number).await?;
            assert_eq!(seen, Sequence::Next, "{consumer} {topic} {key} {number}");
        }
    }
    Ok(tx.commit().await?)
}

async fn new_keys_do_not_wait_for_their_neighbours(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let inbox = Inbox::new("c")?;
    let mut one = database.connect().await?;
    let mut other = database.connect().await?;
    sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 1").execute(&mut other).await?;
    let mut first = one.begin().await?;
    let mut second = other.begin().await?;
    assert_eq!(inbox.follow(&mut first, "t", b"b", 1_u64).await?, Sequence::Next);
    for key in [b"a", b"c"] {
        assert_eq!(inbox.follow(&mut second, "t", key, 1_u64).await?, Sequence::Next);
    }
    second.commit().await?;
    Ok(first.commit().await?)
}

/// After a restore numbers come again, lower or higher than those of before.
async fn a_new_epoch_begins_a_key_anew_and_what_comes_from_an_old_one_is_late(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let inbox = Inbox::new("c")?;
    let mut connection = database.connect().await?;
    for (epoch, number, expected, commits) in [
        (0, 1, Sequence::Next, true),
        (0, 2, Sequence::Next, true),
        (0, 3, Sequence::Next, true),
        (7, 3, Sequence::Next, false),
        (0, 4, Sequence::Next, true),
        (7, 3, Sequence::Next, true),
        (7, 3, Sequence::Repeated, true),
        (0, 5, Sequence::Late, true),
        (0, 3, Sequence::Late, true),
        (7, 4, Sequence::Next, true),
        (7, 2, Sequence::Late, true),
        (7, 6, Sequence::Gap { expected: 5 }, true),
        (9, 1, Sequence::Next, true),
        (7, 5, Sequence::Late, true),
        (9, 2, Sequence::Next, true),
        (12, 1000, Sequence::Next, true),
        (12, 1001, Sequence::Next, true),
    ] {
        let mut tx = connection.begin().await?;
        let seen = inbox.follow(&mut tx, "t", b"k", SequenceNumber { epoch, number }).await?;
        assert_eq!(seen, expected, "{number} of {epoch}");
        if commits { tx.commit().await? } else { tx.rollback().await? }
    }
    Ok(())
}
