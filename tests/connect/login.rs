//! Logins as users do them: with a password, on a server that has not seen it since its start.

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Message, Outbox,
    sqlx::{self, Connection as _, MySqlConnection, MySqlPool},
    store::error_number,
};
use outbox_relay::worker::{BoxError, Delivery, Failure, Handler, Worker};
use testkit::{
    accounts::Account,
    database::Database,
    relay::{Relay, Settings},
    servers::{Flavor, MySql, MySqlOptions, until},
};

use crate::check;

pub(crate) use testkit::servers::PATIENCE;
pub(crate) const PASSWORD: &str = "pass-5bd1e995";

/// A stock server with an account that has a password.
pub(crate) struct Stock {
    server: MySql,
    pub(crate) database: Database,
}

impl Stock {
    pub(crate) async fn start(arguments: &[&str]) -> Result<Self> {
        Self::start_of(Flavor::MySql, arguments).await
    }

    async fn start_of(flavor: Flavor, arguments: &[&str]) -> Result<Self> {
        let options = arguments.iter().fold(MySqlOptions::new(flavor), |options, argument| options.arg(argument));
        let server = options.start().await?;
        let database = Database::create_on(&server.url()).await?;
        let account = format!("CREATE USER stock@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO stock@'%'");
        database.execute(&account).await?;
        Ok(Self { server, database })
    }

    /// Returns the address with the account's login, as a user would write it.
    pub(crate) fn url(&self) -> String {
        let url = self.database.url().replace("root@", &format!("stock:{PASSWORD}@"));
        url.split('?').next().unwrap_or_default().to_owned()
    }

    /// The same through the server's socket.
    fn socket(&self) -> Result<String> {
        let socket = self.server.folder().context("no folder")?.join("socket");
        Ok(format!("{}?socket={}", self.url(), socket.display()))
    }

    async fn chill(&self) -> Result<()> {
        self.database.execute("FLUSH PRIVILEGES").await
    }
}

struct Nothing;

impl Handler for Nothing {
    async fn handle(&self, tx: &mut MySqlConnection, _message: &Delivery) -> Result<(), Failure> {
        let done = sqlx::query("INSERT INTO test_effects (message_id) VALUES (UUID_TO_BIN(UUID()))").execute(tx).await;
        done.map(drop).map_err(|error| Failure::Retry(BoxError::from(error)))
    }
}

/// Each logs in while the server does not have the password in its cache.
async fn relay_service_and_worker_log_in(stock: &Stock, url: &str) -> Result<()> {
    let database = &stock.database;
    stock.chill().await?;
    let mut service = MySqlConnection::connect(url).await.context("a service")?;
    for lane in [0, 7] {
        let mut tx = service.begin().await?;
        Outbox::new().enqueue(&mut tx, Message::new("orders", "{}").lane(lane)).await?;
        tx.commit().await?;
    }
    stock.chill().await?;
    let settings = Settings::new(url).null().route([("topics", "*"), ("sink", "null")]);
    let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings.set("relay", "lanes", vec![0]))?;
    let sent = "SELECT COUNT(*) > 0 FROM outbox_sent";
    database.wait_for(PATIENCE, sent).await.with_context(|| relay.log().unwrap_or_default())?;
    drop(relay);
    let pool = MySqlPool::connect(url).await?;
    stock.chill().await?;
    let stop = async { database.wait_for(PATIENCE, "SELECT COUNT(*) > 0 FROM test_effects").await.unwrap_or_default() };
    Box::pin(Worker::new(pool.connect_options(), 7).run(Nothing, stop)).await?;
    ensure!(database.number("SELECT COUNT(*) FROM outbox_pending").await? == 0, "a message is left");
    database.execute("DELETE FROM outbox_sent; DELETE FROM test_effects").await
}

async fn a_cold_cache(arguments: &[&str]) -> Result<Stock> {
    let mut stock = Stock::start(arguments).await?;
    relay_service_and_worker_log_in(&stock, &stock.url()).await?;
    stock.server.restart().await?;
    relay_service_and_worker_log_in(&stock, &stock.url()).await?;
    Ok(stock)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_taken_by_a_cold_cache_with_tls() -> Result<()> {
    let stock = a_cold_cache(&[]).await?;
    relay_service_and_worker_log_in(&stock, &stock.socket()?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_taken_by_a_cold_cache_without_tls() -> Result<()> {
    let stock = a_cold_cache(&["--tls-version="]).await?;
    // A limit of the driver: it asks for the server's key, and behind a socket the server takes that for the password.
    let socket = stock.socket()?;
    stock.chill().await?;
    let refused = MySqlConnection::connect(&socket).await.err().context("the driver can do it: drop the limit")?;
    ensure!(error_number(&refused) == Some(1045), "{refused}");
    MySqlConnection::connect(&stock.url()).await?.close().await?;
    Ok(MySqlConnection::connect(&socket).await?.close().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_demands_tls_and_one_behind_a_socket_are_reached() -> Result<()> {
    let stock = Stock::start(&[]).await?;
    stock.database.execute("SET GLOBAL require_secure_transport = ON").await?;
    let settings = Settings::new(&stock.url()).null().route([("topics", "*"), ("sink", "null")]);
    let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings)?;
    until(PATIENCE, "a relay that is ready", || async {
        let (status, body) = relay.get("/readyz").await?;
        ensure!(status == 200, "{body}");
        Ok(())
    })
    .await?;
    let settings = settings.clone().set("database", "url", stock.socket()?);
    let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings)?;
    until(PATIENCE, "a relay that is ready", || async {
        let (status, body) = relay.get("/readyz").await?;
        ensure!(status == 200, "{body}");
        Ok(())
    })
    .await
}

/// Checks that `/readyz`, the log and `relay check --connect` report this problem.
async fn is_told(url: &str, sentence: &str) -> Result<()> {
    let found = check::database(url)?;
    ensure!(!found.ok && found.detail.contains(sentence), "{url}: {}", found.detail);
    let settings = Settings::new(url).null().route([("topics", "*"), ("sink", "null")]);
    let relay = Relay::start(env!("CARGO_BIN_EXE_relay"), &settings)?;
    let told = until(PATIENCE, sentence, || async {
        let (_, body) = relay.get("/readyz").await?;
        ensure!(body.contains(sentence) && relay.log()?.contains(sentence), "{body}");
        Ok(())
    });
    told.await.with_context(|| format!("{url}: {}", relay.log().unwrap_or_default()))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_login_that_fails_is_told_with_its_remedy() -> Result<()> {
    let stock = Stock::start(&[]).await?;
    let database = &stock.database;
    let url = stock.url();
    let (server, name) = url.rsplit_once('/').context("no database")?;
    let account = |name: &str| url.replace("stock:", &format!("{name}:"));
    for sql in [
        "CREATE USER locked@'%' IDENTIFIED BY 'PASS' ACCOUNT LOCK",
        "CREATE USER expired@'%' IDENTIFIED BY 'PASS' PASSWORD EXPIRE",
        "CREATE USER ungranted@'%' IDENTIFIED BY 'PASS'",
        "CREATE USER full@'%' IDENTIFIED BY 'PASS' WITH MAX_CONNECTIONS_PER_HOUR 1; GRANT ALL ON *.* TO full@'%'",
        "CREATE USER blocked@'%' IDENTIFIED BY 'PASS' FAILED_LOGIN_ATTEMPTS 1 PASSWORD_LOCK_TIME 1",
        "CREATE USER unknown@'%' IDENTIFIED BY 'PASS'; UPDATE mysql.user SET plugin = 'gone' \
         WHERE user = 'unknown'; FLUSH PRIVILEGES",
    ] {
        database.execute(&sql.replace("'PASS'", &format!("'{PASSWORD}'"))).await?;
    }
    // The account's only connection of this hour.
    MySqlConnection::connect(&account("full")).await?.close().await?;
    for (url, sentence) in [
        (url.replace(PASSWORD, "wrong"), "user or password is wrong"),
        (account("blocked").replace(PASSWORD, "wrong"), "the account is blocked after failed logins"),
        (account("unknown"), "share no way to log in to the account"),
        (account("locked"), "the account is locked: ALTER USER"),
        (account("expired"), "the account's password has expired: ALTER USER"),
        (account("ungranted"), "the account may not use this database"),
        (account("full"), "the account has no connection left: raise its"),
        (format!("{server}/no_{name}"), "the database does not exist: create it"),
        (format!("{url}?ssl-mode=verify_identity"), "of an authority that is not trusted here"),
    ] {
        is_told(&url, sentence).await?;
    }
    let plain = database.url_as(Account::Relay)?;
    let held = database.connect_as(Account::Service).await?;
    database.execute("SET GLOBAL max_connections = 1").await?;
    is_told(&plain, "the server has no connection left: raise its max_connections").await?;
    database.execute("SET GLOBAL max_connections = 100").await?;
    held.close().await?;
    // The last two settings would keep this connection out.
    let mut admin = database.connect_as_admin().await?;
    database.execute("SET GLOBAL require_secure_transport = ON").await?;
    is_told(&format!("{url}?ssl-mode=disabled"), "the server demands TLS (require_secure_transport): remove ssl-mode")
        .await?;
    let elsewhere = "UPDATE mysql.user SET host = CONCAT('no.', host); FLUSH PRIVILEGES";
    sqlx::raw_sql(elsewhere).execute(&mut admin).await?;
    is_told(&url, "the server lets no account in from this host").await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_login_that_fails_on_mariadb_is_told_with_its_remedy() -> Result<()> {
    let stock = Stock::start_of(Flavor::MariaDb, &[]).await?;
    let database = &stock.database;
    let url = stock.url();
    let (server, name) = url.rsplit_once('/').context("no database")?;
    let account = |name: &str| url.replace("stock:", &format!("{name}:"));
    for sql in [
        "CREATE USER locked@'%' IDENTIFIED BY 'PASS' ACCOUNT LOCK",
        "CREATE USER expired@'%' IDENTIFIED BY 'PASS' PASSWORD EXPIRE; GRANT ALL ON *.* TO expired@'%'",
        "CREATE USER ungranted@'%' IDENTIFIED BY 'PASS'",
    ] {
        database.execute(&sql.replace("'PASS'", &format!("'{PASSWORD}'"))).await?;
    }
    for (url, sentence) in [
        (url.replace(PASSWORD, "wrong"), "user or password is wrong"),
        (account("locked"), "the account is locked: ALTER USER"),
        (account("expired"), "the account's password has expired: ALTER USER"),
        (account("ungranted"), "the account may not use this database"),
        (format!("{server}/no_{name}"), "the database does not exist: create it"),
    ] {
        is_told(&url, sentence).await?;
    }
    let plain = database.url_as(Account::Relay)?;
    let held = database.connect_as(Account::Service).await?;
    // MariaDB takes no limit below 10. One connection more is for an administrator.
    let mut others = Vec::new();
    database.execute("SET GLOBAL max_connections = 10").await?;
    while others.len() < 9 {
        others.push(database.connect_as(Account::Service).await?);
    }
    is_told(&plain, "the server has no connection left: raise its max_connections").await?;
    drop((held, others));
    Ok(())
}
