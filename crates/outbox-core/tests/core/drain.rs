//! The relay for tests publishes as a relay does, and what goes wrong looks to consumers as it would.

use std::time::Duration;

use anyhow::{Context as _, Result};
use outbox_core::{
    Contents, Message, Outbox,
    sqlx::MySqlPool,
    test::{Drain, Fault, Published},
};
use testkit::{accounts::Account, database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    what_is_due_arrives_in_order_and_is_settled,
    what_goes_wrong_is_repeated_before_the_rest_of_its_key,
    a_relay_that_lost_its_claim_settles_nothing,
    a_fault_that_does_not_happen_is_an_error,
);

async fn enqueued(flavor: Flavor, messages: Vec<Message>) -> Result<(Database, MySqlPool)> {
    let database = Database::create(flavor).await?;
    let pool = MySqlPool::connect(&database.url_as(Account::Owner)?).await?;
    let mut tx = pool.begin().await?;
    Outbox::new().enqueue_all(&mut tx, messages).await?;
    tx.commit().await?;
    Ok((database, pool))
}

fn payloads(published: &[Published]) -> Vec<&str> {
    published
        .iter()
        .map(|it| std::str::from_utf8(it.contents.payload.as_deref().unwrap_or_default()).unwrap_or("?"))
        .collect()
}

async fn what_is_due_arrives_in_order_and_is_settled(flavor: Flavor) -> Result<()> {
    let full =
        Message::new("orders", "1").key("a").event_type("placed").content_type("text/plain").header("tenant", "blue");
    let messages = vec![
        full.clone(),
        Message::new("orders", "later").delay(Duration::from_secs(3600)),
        Message::new("orders", "expired").expires_after(Duration::from_micros(1)),
        Message::new("mails", "2").lane(7),
        Message::tombstone("orders").key("a"),
    ];
    let (database, pool) = enqueued(flavor, messages).await?;
    let published = Drain::new().run(&pool).await?;
    assert_eq!(payloads(&published), ["1", "", "2"]);
    let first = published.first().cloned();
    let first = first.map(|it| (it.message_id, it.contents));
    let contents = Contents {
        topic: "orders".to_owned(),
        key: Some(b"a".into()),
        event_type: Some("placed".to_owned()),
        content_type: Some("text/plain".to_owned()),
        headers: vec![("tenant".to_owned(), "blue".to_owned())],
        payload: Some(b"1".into()),
    };
    assert_eq!(first, Some((full.id(), contents)));
    for (table, rows) in [("pending", 0), ("claims", 0), ("delayed", 1), ("dead", 1), ("sent_messages", 3)] {
        assert_eq!(database.number(&format!("SELECT COUNT(*) FROM outbox_{table}")).await?, rows, "{table}");
    }
    assert_eq!(Drain::new().run(&pool).await?, []);
    Ok(())
}

async fn what_goes_wrong_is_repeated_before_the_rest_of_its_key(flavor: Flavor) -> Result<()> {
    let messages = || [("a1", "a"), ("a2", "a"), ("b1", "b")].map(|(text, key)| Message::new("orders", text).key(key));
    for (fault, arrived) in [
        (Fault::PublishFails, vec!["a1", "a2", "b1"]),
        (Fault::AcknowledgementLost, vec!["a1", "a1", "a2", "b1"]),
        (Fault::LeaseLost, vec!["a1", "a1", "a2", "b1"]),
        (Fault::Crash, vec!["a1", "a1", "a2", "b1"]),
    ] {
        let (database, pool) = enqueued(flavor, messages().into()).await?;
        let published = Drain::new().at(1, fault).run(&pool).await?;
        assert_eq!(payloads(&published), arrived, "{fault:?}");
        assert_eq!(database.number("SELECT COUNT(*) FROM outbox_sent_messages").await?, 3, "{fault:?}");
    }
    Ok(())
}

async fn a_relay_that_lost_its_claim_settles_nothing(flavor: Flavor) -> Result<()> {
    let (database, pool) = enqueued(flavor, vec![Message::new("orders", "1")]).await?;
    let published =
        Drain::new().at(1, Fault::LeaseLost).at(2, Fault::Crash).at(3, Fault::PublishFails).run(&pool).await?;
    assert_eq!(payloads(&published), ["1", "1", "1"]);
    let claims = "SELECT COUNT(*) FROM outbox_sent_messages";
    assert_eq!(database.number(claims).await?, 1, "only who held the claim has settled it");
    Ok(())
}

async fn a_fault_that_does_not_happen_is_an_error(flavor: Flavor) -> Result<()> {
    for n in [0, 2] {
        let (_database, pool) = enqueued(flavor, vec![Message::new("orders", "1")]).await?;
        let error = Drain::new().at(n, Fault::Crash).run(&pool).await.err().context("it ran")?.to_string();
        assert!(error.contains(&format!("no publish {n} that could go wrong, only 1")), "{error}");
    }
    Ok(())
}
