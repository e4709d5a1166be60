//! DR3: a Galera cluster whose nodes all take writes, and list only their own transactions; one node is killed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures_util::FutureExt as _;
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    load::Load,
    proxy::Proxy,
    servers::{Flavor, Galera},
};

use tokio::process::Command;

use super::between::{keep, progress};
use crate::{
    arena::{Arena, PATIENCE},
    row::{Case, Row},
};

/// The nodes: one of a service, one of another service, and one of relays and consumers.
const SERVICE: usize = 0;
const OTHER_SERVICE: usize = 1;
const RELAYS: usize = 2;
/// Transactions of the other service stay open for up to this duration, which is longer than any margin of the relays.
const HELD: Duration = Duration::from_secs(5);
/// The time limit for the relays to publish again. The other nodes take five seconds to give up the dead one.
const RECOVERY: Duration = Duration::from_secs(30);

pub(super) fn row() -> Row {
    let case =
        |name, victim| Case::new(name, move |arena| cluster(arena, victim).boxed()).on(Flavor::MariaDb, Broker::Kafka);
    Row {
        id: "DR3",
        fault: "kill -9 one of three Galera nodes, two of which take writes",
        shows: "nothing lost, no order broken, though no node lists the transactions of the others",
        cases: vec![case("a node of services", OTHER_SERVICE).short(), case("the node of the relays", RELAYS)],
    }
}

async fn cluster(arena: &mut Arena, victim: usize) -> Result<()> {
    let names = move_to_cluster(arena).await?;
    operator_is_told(arena).await?;
    arena.duplicates_are_announced();
    arena.rate /= 2.0;
    arena.start().await?;
    let [_, other, _] = &names;
    let load = Load::standard(arena.topic.name(), arena.rate).keys_of(arena.seed).seed(arena.seed + 1).held(HELD);
    let load = load.start(&Database::at(other.address()), &arena.ledger).await?;
    // Transactions of both nodes end one after the other for a while.
    tokio::time::sleep(arena.lasting(10_000..20_000, 8000)).await;
    arena.strike().await?;
    let galera = arena.ground.galera.as_mut().context("there is no cluster")?;
    galera.nodes.get_mut(victim).context("no such node")?.kill()?;
    let heir = galera.nodes.get(SERVICE).context("no such node")?.url();
    names.get(victim).context("no such name")?.retarget(&heir)?;
    arena.recovered(Instant::now(), RECOVERY).await?;
    progress(arena, 200.0).await?;
    load.stop().await?;
    arena.stop_load().await?;
    for (id, name) in (1..).zip(&names) {
        seen(arena, &Database::at(name.address()), id).await?;
    }
    Ok(())
}

/// Moves the database to a cluster whose nodes each have a name. Relays may read the list of transactions, as on one
/// server.
async fn move_to_cluster(arena: &mut Arena) -> Result<[Arc<Proxy>; 3]> {
    let galera = Galera::start().await?;
    let node = |number: usize| galera.nodes.get(number).context("no such node");
    let database = Database::create_on(&node(SERVICE)?.url()).await?;
    database.execute("GRANT PROCESS ON *.* TO 'outbox_relay'@'%'").await?;
    let mut names = Vec::new();
    for number in [SERVICE, OTHER_SERVICE, RELAYS] {
        let proxy = Proxy::start(database.on(node(number)?)?.url()).await?;
        names.push(keep(arena, proxy));
    }
    let names: [Arc<Proxy>; 3] = names.try_into().ok().context("three names are due")?;
    let [service, _, relays] = &names;
    let last = "SELECT COUNT(*) FROM information_schema.user_privileges WHERE grantee LIKE '%outbox_relay%' \
                AND privilege_type = 'PROCESS'";
    for name in &names {
        Database::at(name.address()).wait_for(PATIENCE, last).await?;
    }
    let shared = std::mem::replace(&mut arena.database, Database::at(relays.address()));
    shared.remove().await?;
    (arena.producers, arena.inboxes) = (Database::at(service.address()), arena.database.clone());
    arena.settings = arena.settings.clone().set("database", "url", arena.database.url_as(Account::Relay)?).set(
        "relay",
        "max_transaction_age",
        "20s",
    );
    arena.ground.galera = Some(galera);
    Ok(names)
}

/// `relay check --connect` tells the operator that the privilege PROCESS does not help on Galera.
async fn operator_is_told(arena: &Arena) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let text = format!(
        "database.url = {:?}\n[sinks.it]\ntype = \"null\"\n[[routes]]\ntopics = \"*\"\nsink = \"it\"\n",
        arena.database.url_as(Account::Relay)?
    );
    std::fs::write(folder.path().join("relay.toml"), text)?;
    let mut check = Command::new(&arena.setup.relay);
    let output = check.args(["check", "--connect"]).current_dir(folder.path()).output().await?;
    let told = String::from_utf8_lossy(&output.stdout);
    ensure!(told.contains("a node of a Galera cluster does not list the transactions of the others"), "{told}");
    Ok(())
}

/// Waits until the relays' node has every transaction committed on this one.
async fn seen(arena: &Arena, there: &Database, id: u64) -> Result<()> {
    there.execute(&format!("INSERT INTO test_keys (id, sequence) VALUES ({id}, 0)")).await?;
    arena.database.wait_for(PATIENCE, &format!("SELECT COUNT(*) FROM test_keys WHERE id = {id}")).await
}
