//! The database is away, and comes back.

use anyhow::{Result, ensure};
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
