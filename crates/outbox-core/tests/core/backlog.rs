//! A service can see that nobody sends its messages, and stop.

use std::{
    io,
    sync::mpsc::{Sender, channel},
    time::Duration,
};

use anyhow::Result;
use outbox_core::{
    EnqueueError, Message, OnBacklog, Outbox,
    sqlx::{Connection as _, MySqlConnection},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    the_backlog_is_the_age_of_the_oldest_due_message,
    beyond_the_limit_enqueue_refuses_and_the_transaction_stays_usable,
    beyond_the_limit_enqueue_warns_once_a_reading,
    a_reading_is_kept_and_shared_by_clones,
);

const MINUTE: Duration = Duration::from_mins(1);

fn message() -> Message {
    Message::new("orders", "{}")
}

async fn enqueue(outbox: &Outbox, conn: &mut MySqlConnection, message: Message) -> Result<(), EnqueueError> {
    let mut tx = conn.begin().await?;
    let outcome = outbox.enqueue(&mut tx, message).await.map(drop);
    tx.commit().await?;
    outcome
}

async fn age_all(database: &Database) -> Result<()> {
    database.execute("UPDATE outbox_messages SET created_at = created_at - INTERVAL 1 HOUR").await
}

async fn the_backlog_is_the_age_of_the_oldest_due_message(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.plain().await?;
    assert_eq!(Outbox::new().backlog(&mut connection).await?, Duration::ZERO);
    enqueue(&Outbox::new(), &mut connection, message().delay(MINUTE)).await?;
    age_all(&database).await?;
    assert_eq!(Outbox::new().backlog(&mut connection).await?, Duration::ZERO, "what is not due does not count");
    enqueue(&Outbox::new(), &mut connection, message().lane(7)).await?;
    age_all(&database).await?;
    enqueue(&Outbox::new(), &mut connection, message()).await?;
    let age = Outbox::new().backlog(&mut connection).await?;
    assert!(age >= 60 * MINUTE && age < 120 * MINUTE, "{age:?}");
    Ok(())
}

async fn beyond_the_limit_enqueue_refuses_and_the_transaction_stays_usable(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.plain().await?;
    enqueue(&Outbox::new(), &mut connection, message()).await?;
    age_all(&database).await?;
    let mut tx = connection.begin().await?;
    let refused = Outbox::new().max_backlog_age(MINUTE, OnBacklog::Refuse).enqueue(&mut tx, message()).await;
    assert!(
        matches!(refused, Err(EnqueueError::Backlog { age, limit }) if age >= 60 * MINUTE && limit == MINUTE),
        "{refused:?}"
    );
    Outbox::new().max_backlog_age(120 * MINUTE, OnBacklog::Refuse).enqueue(&mut tx, message()).await?;
    Outbox::new().max_backlog_age(MINUTE, OnBacklog::Warn).enqueue(&mut tx, message()).await?;
    tx.commit().await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_pending").await?, 3);
    Ok(())
}

async fn beyond_the_limit_enqueue_warns_once_a_reading(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.plain().await?;
    let (sender, said) = channel();
    let log = tracing_subscriber::fmt().with_writer(move || Log(sender.clone())).finish();
    // While a single dispatcher is alive, tracing asks only the thread that first meets the warning, which may be
    // another test's: its answer "never" is kept. With two alive it asks both.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let guard = tracing::subscriber::set_default(log);
    enqueue(&Outbox::new(), &mut connection, message()).await?;
    age_all(&database).await?;
    let outbox = Outbox::new().max_backlog_age(MINUTE, OnBacklog::Warn);
    // Who asks takes nobody's warning.
    outbox.backlog(&mut connection).await?;
    for _ in 0..2 {
        enqueue(&outbox, &mut connection, message()).await?;
    }
    drop(guard);
    let said: Vec<String> = said.try_iter().filter(|line| line.contains("outbox")).collect();
    assert!(matches!(&said[..], [one] if one.contains("WARN") && one.contains("is a relay running?")), "{said:?}");
    Ok(())
}

/// Sends each line.
struct Log(Sender<String>);

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn a_reading_is_kept_and_shared_by_clones(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut connection = database.plain().await?;
    enqueue(&Outbox::new(), &mut connection, message()).await?;
    age_all(&database).await?;
    let outbox = Outbox::new().max_backlog_age(MINUTE, OnBacklog::Refuse);
    let age = outbox.backlog(&mut connection).await?;
    // From here on the server could not answer.
    database.execute("RENAME TABLE outbox_pending TO elsewhere").await?;
    assert_eq!(outbox.clone().backlog(&mut connection).await?, age);
    let refused = enqueue(&outbox.clone(), &mut connection, message()).await;
    assert!(matches!(refused, Err(EnqueueError::Backlog { age: seen, .. }) if seen == age), "{refused:?}");
    assert!(Outbox::new().backlog(&mut connection).await.is_err(), "another outbox has to ask");
    Ok(())
}
