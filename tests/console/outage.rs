//! The database is away, or a table is locked.

use anyhow::{Result, ensure};
use outbox_core::sqlx;
use testkit::{accounts::Account, consume::Broker, proxy::Proxy};

use crate::{
    browser::browse,
    stage::{Console, Stage},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_page_says_that_the_database_is_away_and_recovers_with_a_reload() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let url = stage.database.url_as(Account::Operator)?;
    let proxy = Proxy::start(&url).await?;
    let console = Console::start(proxy.address()).await?;
    let status = "return performance.getEntriesByType('navigation')[0].responseStatus";
    browse(&console, "alice", async |browser| {
        // Nobody listens there.
        proxy.retarget("127.0.0.1:9")?;
        proxy.reset();
        browser.client.refresh().await?;
        ensure!(browser.run(status).await? == 503, "{}", browser.text("body").await?);
        ensure!(browser.count("[role=alert]").await? > 0, "{}", browser.text("body").await?);
        proxy.retarget(&url)?;
        browser.client.refresh().await?;
        ensure!(browser.run(status).await? == 200, "{}", browser.text("body").await?);
        ensure!(browser.count("[role=alert]").await? == 0, "{}", browser.text("body").await?);
        Ok(())
    })
    .await
}

/// The first question that waits for the lock names the table. The others of the page do not wait in their turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_table_is_named_once() -> Result<()> {
    let stage = Stage::new(Broker::Kafka).await?;
    let console = stage.console().await?;
    let mut other = stage.database.connect_as_admin().await?;
    sqlx::raw_sql("LOCK TABLES outbox_delayed WRITE, outbox_dead WRITE").execute(&mut other).await?;
    browse(&console, "alice", async |browser| {
        browser.go("/").await?;
        let page = browser.text("main").await?;
        ensure!(browser.count("[role=alert]").await? == 1 && page.contains("outbox_de"), "{page}");
        sqlx::raw_sql("UNLOCK TABLES").execute(&mut other).await?;
        browser.go("/").await?;
        ensure!(browser.count("[role=alert]").await? == 0, "{}", browser.text("main").await?);
        Ok(())
    })
    .await
}
