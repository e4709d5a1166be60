use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use futures_util::StreamExt;
use lapin::{Connection, options::QueueDeclareOptions};
use outbox_core::{Message, Outbox, sqlx::MySqlPool};
use testcontainers::{
    GenericImage, ImageExt,
    core::{IntoContainerPort, WaitFor, wait::HttpWaitStrategy},
    runners::AsyncRunner,
};
use tokio::time::timeout;

#[tokio::test]
async fn an_order_arrives() -> Result<()> {
    let container = |image, tag, port: u16, ready| {
        GenericImage::new(image, tag).with_exposed_port(port.tcp()).with_wait_for(ready).with_network("outbox")
    };
    let ready = WaitFor::message_on_stderr("port: 3306  MySQL Community Server");
    let mysql = container("mysql", "8.4.6", 3306, ready)
        .with_env_var("MYSQL_ROOT_PASSWORD", "test")
        .with_env_var("MYSQL_DATABASE", "test");
    let ready = WaitFor::message_on_stdout("Server startup complete");
    let rabbitmq = container("rabbitmq", "4.1.4-management", 5672, ready);
    let (mysql, rabbitmq) = tokio::try_join!(mysql.start(), rabbitmq.start())?;
    let port = mysql.get_host_port_ipv4(3306).await?;
    let pool = MySqlPool::connect(&format!("mysql://root:test@127.0.0.1:{port}/test")).await?;
    outbox_core::migrate(&mut *pool.acquire().await?).await?;
    let ready = HttpWaitStrategy::new("/readyz").with_expected_status_code(200_u16);
    let relay = container("outbox-relay", "0.1.0-x86_64", 9464, ready.into())
        .with_copy_to("/relay.toml", Path::new("relay.toml"))
        .with_env_var("RELAY_CONFIG", "/relay.toml")
        .with_env_var("RELAY__DATABASE__URL", format!("mysql://root:test@{}/test?ssl-mode=REQUIRED", &mysql.id()[..12]))
        .with_env_var("RELAY__SINKS__RABBITMQ__URL", format!("amqp://guest:guest@{}", &rabbitmq.id()[..12]));
    let _relay = relay.start().await?;
    let broker = format!("amqp://127.0.0.1:{}", rabbitmq.get_host_port_ipv4(5672).await?);
    let channel = Connection::connect(&broker, Default::default()).await?.create_channel().await?;
    channel.queue_declare("orders".into(), QueueDeclareOptions::durable(), Default::default()).await?;
    let mut orders = channel.basic_consume("orders".into(), "".into(), Default::default(), Default::default()).await?;
    let mut tx = pool.begin().await?;
    Outbox::new().enqueue(&mut tx, Message::new("orders", r#"{"order":42}"#)).await?;
    tx.commit().await?;
    let order = timeout(Duration::from_secs(30), orders.next()).await?.context("the channel was closed")??;
    assert_eq!(order.data, br#"{"order":42}"#);
    Ok(())
}
