//! No payload, key, header value or password is in any log, metric or error.

use anyhow::{Result, ensure};
use testkit::{consume::Broker, judge::Expectations, ledger::Draft, servers::Flavor};

use crate::stage::Stage;

const CANARY: &str = "canary-5bd1e995";
const USER: &str = "outbox_canary";

#[tokio::test]
async fn nothing_of_a_message_and_no_password_is_ever_printed() -> Result<()> {
    let mut stage = Stage::new(Flavor::MySql, Broker::RabbitMq).await?.patient();
    // TLS, because without it MySQL's login by password wants an RSA key.
    let url = stage.database.url().replace("root@", &format!("{USER}:{CANARY}@")).replace("disabled", "required");
    let user = format!("CREATE USER IF NOT EXISTS {USER}@'%' IDENTIFIED BY '{CANARY}'; GRANT ALL ON *.* TO {USER}@'%'");
    stage.database.execute(&user).await?;
    stage.settings = stage.settings.clone().set("database", "url", url).set("log", "level", "trace");
    let message = |topic: &str| Draft::new(topic, CANARY).unordered_key(CANARY).header("h", CANARY);
    let unroutable = message("nowhere");
    stage.commit(&[message(stage.topic.name()), unroutable.clone()]).await?;
    let relay = stage.relay()?;
    let outcome = stage.drain_and_judge(&Expectations::new().at_least(2).dead([unroutable.id])).await;
    let log = relay.log()?;
    outcome.map_err(|error| error.context(log.clone()))?;
    let pages = [log, relay.get("/metrics").await?.1, relay.get("/readyz").await?.1];
    for page in pages {
        let line = page.lines().find(|line| line.contains(CANARY));
        ensure!(line.is_none(), "{line:?}");
    }
    let error = format!("SELECT COUNT(*) FROM outbox_dead WHERE error LIKE '%{CANARY}%'");
    ensure!(stage.database.number(&error).await? == 0, "it is in the error of a dead message");
    Ok(())
}
