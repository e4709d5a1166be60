//! A relay is ready when its database is: without its broker, under systemd, and beside slow clients.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testkit::{
    consume::Broker,
    database::Database,
    on_both_databases,
    relay::Settings,
    servers::{Flavor, free_port, until},
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpStream, UnixDatagram},
    time::timeout,
};

use crate::stage::{PATIENCE, Stage, client, start};

on_both_databases!(
    a_relay_whose_broker_is_down_is_ready_and_readyz_status_and_metric_name_the_broker,
    systemd_is_told_that_a_relay_is_ready_once_its_tables_exist,
);

async fn a_relay_whose_broker_is_down_is_ready_and_readyz_status_and_metric_name_the_broker(
    flavor: Flavor,
) -> Result<()> {
    let stage = Stage::new(flavor, Broker::Kafka).await?;
    let nowhere = format!("127.0.0.1:{}", free_port()?);
    let relay = start(&stage.settings.clone().kafka(&nowhere))?;
    until(PATIENCE, "the broker to be named", || async {
        let (status, body) = relay.get("/readyz").await?;
        ensure!(status == 200 && body.starts_with("sink kafka: "), "{status} {body}");
        Ok(())
    })
    .await?;
    ensure!(relay.metrics().await?.sum("outbox_relay_sink_connected").abs() < 0.5);
    let operator = stage.operator()?;
    // Heartbeats have it, every ten seconds.
    until(PATIENCE, "the status to name it", || async {
        let status = operator.json("status", &[]).await?;
        let told = status.pointer("/sinks_down/kafka").and_then(Value::as_str).context("not named")?;
        ensure!(told.starts_with("takes nothing from 1 relay: "), "{told}");
        Ok(())
    })
    .await?;
    let shown = operator.done("status", &[]).await?;
    ensure!(shown.contains("sinks down: kafka"), "{shown}");
    Ok(())
}

/// Returns the next report that is none of the watchdog.
async fn report(supervisor: &UnixDatagram) -> Result<String> {
    let mut report = vec![0; 4096];
    loop {
        let length = timeout(PATIENCE, supervisor.recv(&mut report)).await.context("no report")??;
        let text = String::from_utf8_lossy(report.get(..length).context("too long")?);
        if text != "WATCHDOG=1" {
            return Ok(text.into_owned());
        }
    }
}

async fn systemd_is_told_that_a_relay_is_ready_once_its_tables_exist(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    let folder = tempfile::tempdir()?;
    let name = folder.path().join("notify");
    let supervisor = UnixDatagram::bind(&name)?;
    let settings = Settings::new(database.url()).null().route([("topics", "*"), ("sink", "null")]);
    let mut relay = start(&settings.env("NOTIFY_SOCKET", &name.to_string_lossy()))?;
    loop {
        let early = report(&supervisor).await?;
        ensure!(early.starts_with("STATUS=not ready; "), "{early}");
        if early.contains("the outbox tables do not exist") {
            break;
        }
    }
    client(database.url()).done("migrate up", &[]).await?;
    while report(&supervisor).await? != "READY=1" {}
    ensure!(report(&supervisor).await? == "STATUS=ready");
    ensure!(relay.get("/readyz").await? == (200, "ok\n".to_owned()));
    relay.stop(PATIENCE).await?;
    ensure!(report(&supervisor).await? == "STOPPING=1");
    Ok(())
}

/// Each has sent half a request. The relay's own deadline of a connection is ten seconds.
#[tokio::test]
async fn probes_of_a_relay_are_answered_beside_200_connections_that_send_nothing_more() -> Result<()> {
    let settings = Settings::new("mysql://nobody@127.0.0.1:1/none").null().route([("topics", "*"), ("sink", "null")]);
    let relay = start(&settings)?;
    until(PATIENCE, "the relay to listen", || async { relay.get("/livez").await }).await?;
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut client = TcpStream::connect(("127.0.0.1", relay.port())).await?;
        client.write_all(b"GET /metrics HTTP/1.1\r\n").await?;
        slow.push(client);
    }
    for (path, expected) in [("/livez", 200), ("/readyz", 503), ("/metrics", 200)] {
        let (status, body) = relay.get(path).await?;
        ensure!(status == expected, "{path}: {status} {body}");
    }
    Ok(())
}
