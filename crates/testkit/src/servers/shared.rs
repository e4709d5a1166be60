//! One server of each kind for all tests of a process: the user's, if an address is given, or one started on first use.
//!
//! Tests that kill or pause a server start their own instead.

use anyhow::Result;
use tokio::sync::OnceCell;

use super::{ChromeDriver, Flavor, Kafka, Kind, MySql, RabbitMq};

static MYSQL: OnceCell<MySql> = OnceCell::const_new();
static MARIADB: OnceCell<MySql> = OnceCell::const_new();
static KAFKA: OnceCell<Kafka> = OnceCell::const_new();
static RABBITMQ: OnceCell<RabbitMq> = OnceCell::const_new();
static CHROMEDRIVER: OnceCell<ChromeDriver> = OnceCell::const_new();

/// The address of a MySQL or MariaDB server on which tests create databases: see
/// [`fresh_database`](super::fresh_database).
///
/// # Errors
/// When no address is given and no server can be started.
pub async fn mysql_url(flavor: Flavor) -> Result<String> {
    let cell = match flavor {
        Flavor::MySql => &MYSQL,
        Flavor::MariaDb => &MARIADB,
    };
    match flavor.kind().given() {
        Some(url) => Ok(url),
        None => Ok(cell.get_or_try_init(|| MySql::start(flavor)).await?.url()),
    }
}

/// The address of a Kafka node on which tests create topics.
///
/// # Errors
/// When no address is given and no server can be started.
pub async fn kafka_bootstrap() -> Result<String> {
    match Kind::Kafka.given() {
        Some(address) => Ok(address),
        None => Ok(KAFKA.get_or_try_init(Kafka::start).await?.bootstrap()),
    }
}

/// The address of a RabbitMQ node on which tests declare queues.
///
/// # Errors
/// When no address is given and no server can be started.
pub async fn amqp_url() -> Result<String> {
    match Kind::RabbitMq.given() {
        Some(url) => Ok(url),
        None => Ok(RABBITMQ.get_or_try_init(RabbitMq::start).await?.amqp_url()),
    }
}

/// The address of a chromedriver, with which tests open browsers.
///
/// # Errors
/// When none can be started.
pub async fn chromedriver_url() -> Result<String> {
    Ok(CHROMEDRIVER.get_or_try_init(ChromeDriver::start).await?.url())
}
