//! Several outboxes, below the path of a proxy.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use testkit::{accounts::Account, consume::Broker, relay::Settings};

use crate::{
    browser::browse,
    pages::visit_all,
    stage::{Console, Stage},
};

const PAGES: [&str; 6] =
    ["/outbox/", "/outbox/o/shop/", "/outbox/o/shop/dead", "/outbox/o/crm/destinations", "/o/crm/", "/outbox/o/away/"];

/// Returns the addresses in the page that lead out of the path of the proxy.
const OUTSIDE: &str = "
    const all = [...document.querySelectorAll('[href], [src], form')].map(it => it.href ?? it.src ?? it.action);
    const here = location.origin + '/outbox/';
    return all.filter(it => !String(it).startsWith(here));";

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    Ok(fs::write(folder.join(format!("{name}.toml")), text)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_for_one_of_several_outboxes() -> Result<()> {
    let (shop, crm) = (Stage::new(Broker::Kafka).await?, Stage::new(Broker::Kafka).await?);
    let folder = tempfile::tempdir()?;
    for (name, stage) in [("shop", &shop), ("crm", &crm)] {
        let url = stage.database.url_as(Account::Operator)?;
        write(folder.path(), name, &format!("[database]\nurl = {url:?}\n"))?;
    }
    // Nobody listens there.
    write(folder.path(), "away", "[console]\nvia = \"http://127.0.0.1:9\"\n")?;
    let settings = Settings::new(&shop.database.url_as(Account::Operator)?)
        .set("console", "outboxes", folder.path().to_string_lossy().into_owned())
        .set("console", "prefix", "/outbox");
    let console = Console::with(settings).await?;
    let pages = PAGES.map(|path| (format!("several{}", path.replace('/', "-")), path.to_owned()));
    browse(&console, "alice", async |browser| {
        // The last one says that its API does not answer.
        visit_all(browser, &pages[..5]).await?;
        // Without the path of the proxy its links still have it.
        for path in PAGES.into_iter().filter(|path| path.starts_with("/outbox")) {
            browser.go(path).await?;
            let outside = browser.run(OUTSIDE).await?;
            ensure!(outside.as_array().is_some_and(Vec::is_empty), "{path}: {outside:#}");
        }
        browser.order("/outbox/o/shop/order/pause?lane=1", "a repair", None).await?;
        let path = browser.path().await?;
        ensure!(path.starts_with("/outbox/o/shop/controls"), "the order leads to {path}");
        Ok(())
    })
    .await?;
    let paused = "SELECT COUNT(*) FROM outbox_controls WHERE actor = 'alice'";
    ensure!(shop.database.number(paused).await? == 1, "it is not paused");
    ensure!(crm.database.number(paused).await? == 0, "the wrong one is paused");
    Ok(())
}
