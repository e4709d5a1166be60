//! The program's answers, its rows, and the messages that arrive at Kafka.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::{
    accounts::Account,
    consume::{Broker, Topic},
    database::Database,
    program::{self, Program},
    relay::{Relay, Settings},
    servers::{Flavor, PATIENCE, free_port, until},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Places an order; returns the answer's status and body.
async fn place(address: &str, body: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let head = "POST /orders HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-type: application/json";
    stream.write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_sent_if_and_only_if_it_was_taken() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let mut topic = Topic::create(Broker::Kafka).await?;
    let settings = Settings::new(&database.url_as(Account::Relay)?).kafka(topic.address());
    let settings = settings.route([("topics", "orders"), ("sink", "kafka"), ("topic", topic.name())]);
    let relay = Relay::start(program::relay()?, &settings)?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let login = database.url_as(Account::Owner)?;
    let environment = [("DATABASE_URL", login.as_str()), ("LISTEN", address.as_str())];
    let shop = Program::start(env!("CARGO_BIN_EXE_shop-axum"), &environment)?;
    until(PATIENCE, "the shop", || async { Ok(TcpStream::connect(&address).await?) }).await.context(shop.log()?)?;

    let mut taken = BTreeSet::new();
    let mut refused = 0;
    for number in 1..=40u64 {
        // Customer 1 soon owes too much.
        let cents = if number % 4 == 1 { 30_000 } else { 100 };
        let (status, body) = place(&address, &format!(r#"{{"customer":{},"cents":{cents}}}"#, number % 4)).await?;
        match status {
            201 => drop(taken.insert(serde_json::from_str::<Value>(&body)?["id"].as_u64())),
            422 => refused += 1,
            other => anyhow::bail!("{other}: {body}\n{}", shop.log()?),
        }
    }
    assert_eq!((taken.len(), refused), (33, 7));
    assert_eq!(place(&address, "no order").await?.0, 400);
    assert_eq!(database.number("SELECT COUNT(*) FROM orders").await?, 33);
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_messages").await?, 33);

    database.wait_until_drained(PATIENCE).await?;
    let mut arrived = BTreeSet::new();
    for arrival in topic.read().await? {
        let order: Value = serde_json::from_slice(arrival.payload.as_deref().unwrap_or_default())?;
        let customer = order["customer"].to_string();
        ensure!(arrival.key.as_deref() == Some(customer.as_bytes()), "the key is the customer");
        ensure!(arrival.event_type.as_deref() == Some("order.placed"), "the type");
        arrived.insert(order["id"].as_u64());
    }
    assert_eq!(arrived, taken);
    drop(relay);
    Ok(())
}
