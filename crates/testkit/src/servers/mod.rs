//! Real servers: MySQL, MariaDB, Kafka and RabbitMQ, on free ports of the loopback address, with data in fresh folders.
//!
//! Each is found in this order, and reports its origin ([`Origin`]): an address given by the user ([`Kind::variable`],
//! used by [`mysql_url`], [`kafka_bootstrap`] and [`amqp_url`]); a program on the PATH; Docker with the project's
//! `docker-compose.yml`; packages of the machine's own mirror unpacked into `.cache/servers`.
//!
//! [`MySql`], [`Kafka`] and [`RabbitMq`] are servers of one test, to be killed, paused and restarted. They end with
//! their handle, and with the process that holds it, however that ends.

mod alertmanager;
mod apt;
pub mod cache;
pub(crate) mod call;
mod chromium;
mod database;
mod docker;
mod erlang;
mod galera;
mod host;
mod hostile;
mod kafka;
mod kafka_cluster;
mod maven;
mod mysql;
mod mysql_program;
mod odd;
mod origin;
mod packages;
mod ports;
pub(crate) mod process;
mod prometheus;
mod quota;
mod rabbitmq;
mod replica;
mod shared;
mod sources;
mod system;
mod topics;
mod wait;

pub use self::alertmanager::Alertmanager;
pub use self::prometheus::{Prometheus, serve};
pub use chromium::{ChromeDriver, chromium};
pub use database::fresh_database;
pub use galera::Galera;
pub use kafka::Kafka;
pub use kafka_cluster::KafkaCluster;
pub use maven::axe;
pub use mysql::{Flavor, MySql, MySqlOptions};
pub use origin::{Kind, Origin, prepare};
pub use packages::{amtool, mysql_client, promtool};
pub use ports::free_port;
pub use quota::limit_producer;
pub use rabbitmq::RabbitMq;
pub use replica::{Replica, Replication, acknowledged};
pub use shared::{amqp_url, chromedriver_url, kafka_bootstrap, mysql_url};
pub use system::{can_install, ensure_program};
pub use topics::{create_queue, create_topic, create_topic_with, delete_topic};
pub use wait::{PATIENCE, until};

/// The methods that all servers share. A macro and not a trait: tests need no import, and the waiting inside `restart`
/// differs.
macro_rules! host_methods {
    ($server:ident) => {
        impl $server {
            /// The server's origin.
            #[must_use]
            pub fn origin(&self) -> &super::origin::Origin {
                &self.origin
            }

            /// Its process id; an error if it does not run, or runs in a container.
            ///
            /// # Errors
            /// See above.
            pub fn pid(&self) -> anyhow::Result<u32> {
                self.host.pid()
            }

            /// The file with its output, if it runs outside a container.
            #[must_use]
            pub fn log(&self) -> Option<std::path::PathBuf> {
                self.host.log()
            }

            /// The folder with its data, if it runs outside a container.
            #[must_use]
            pub fn folder(&self) -> Option<&std::path::Path> {
                self.host.folder()
            }

            /// Kills it at once (SIGKILL) and waits for its end. Its port and data stay for [`Self::restart`].
            ///
            /// # Errors
            /// When it does not run.
            pub fn kill(&mut self) -> anyhow::Result<()> {
                self.host.kill()
            }

            /// Checks that a server that nobody stopped still runs.
            ///
            /// # Errors
            /// When it has ended on its own, or does not run; with its exit status and the end of its log.
            pub fn check(&mut self) -> anyhow::Result<()> {
                self.host.check()
            }

            /// Freezes it (SIGSTOP): connections stay open and nothing answers.
            ///
            /// # Errors
            /// When it does not run.
            pub fn pause(&self) -> anyhow::Result<()> {
                self.host.pause()
            }

            /// Resumes it after [`Self::pause`].
            ///
            /// # Errors
            /// When it does not run.
            pub fn resume(&self) -> anyhow::Result<()> {
                self.host.resume()
            }

            /// Stops it in order. Its port and data stay for [`Self::restart`].
            ///
            /// # Errors
            /// When it does not run, or had to be killed.
            pub async fn stop(&mut self) -> anyhow::Result<()> {
                self.host.stop().await
            }

            /// Restarts it on the same port with the same data, after a stop if it runs, and waits until it answers.
            ///
            /// # Errors
            /// When it does not answer; with the end of its log.
            pub async fn restart(&mut self) -> anyhow::Result<()> {
                self.host.restart().await?;
                self.ready().await
            }
        }
    };
}
use host_methods;
