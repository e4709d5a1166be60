//! Readers of Kafka topics and RabbitMQ queues that keep every arrival with all its bytes.

mod kafka;
mod rabbitmq;
mod send;

use anyhow::Result;
use rdkafka::util::Timeout;
use uuid::Uuid;

pub use self::send::Sending;
use crate::{
    ledger::{Contents, Fingerprint},
    servers,
};

/// A delivery as a consumer sees it.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// The message id.
    pub id: Uuid,
    /// Kafka's topic or RabbitMQ's routing key.
    pub topic: String,
    /// The topic of the outbox, from the header in which the relay sends it.
    pub outbox_topic: Option<String>,
    /// The message key.
    pub key: Option<Vec<u8>>,
    /// The event type.
    pub event_type: Option<String>,
    /// The content type.
    pub content_type: Option<String>,
    /// The headers, in the order of the wire.
    pub headers: Vec<(String, String)>,
    /// The payload; `None` for a tombstone.
    pub payload: Option<Vec<u8>>,
    /// Its place: partition and offset, or the queue.
    pub place: String,
    /// Whether the broker says that it delivers the message again: such a duplicate is not the relay's.
    pub redelivered: bool,
}

impl Arrival {
    /// The contents that the judge compares.
    #[must_use]
    pub fn contents(&self) -> Contents {
        Contents {
            topic: self.topic.clone(),
            key: self.key.clone(),
            event_type: self.event_type.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            payload: self.payload.as_deref().map(Fingerprint::of),
        }
        .sorted()
    }
}

/// The brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broker {
    /// Kafka.
    Kafka,
    /// RabbitMQ.
    RabbitMq,
}

impl Broker {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Kafka, Self::RabbitMq];

    /// The address of the broker that tests share.
    ///
    /// # Errors
    /// When there is none and none can be started.
    pub async fn address(self) -> Result<String> {
        match self {
            Self::Kafka => servers::kafka_bootstrap().await,
            Self::RabbitMq => servers::amqp_url().await,
        }
    }
}

/// A topic of one test: a Kafka topic, or a RabbitMQ exchange with a queue behind it, both of this name.
#[derive(Debug)]
pub struct Topic {
    broker: Broker,
    address: String,
    name: String,
    arrivals: Vec<Arrival>,
    /// Further Kafka topics or RabbitMQ exchanges, each exchange with a queue behind it.
    beside: Vec<String>,
}

/// The number of partitions of a topic, so that keys are spread.
const PARTITIONS: i32 = 4;

impl Topic {
    /// Makes a topic on the broker that tests share.
    ///
    /// # Errors
    /// When the broker cannot be reached or refuses.
    pub async fn create(broker: Broker) -> Result<Self> {
        Self::create_on(broker, &broker.address().await?).await
    }

    /// Makes a topic on the broker with this address.
    ///
    /// # Errors
    /// When the broker cannot be reached or refuses.
    pub async fn create_on(broker: Broker, address: &str) -> Result<Self> {
        let name = unique_name();
        match broker {
            Broker::Kafka => servers::create_topic(address, &name, PARTITIONS).await?,
            Broker::RabbitMq => rabbitmq::declare(address, &name, None).await?,
        }
        Ok(Self { broker, address: address.to_owned(), name, arrivals: Vec::new(), beside: Vec::new() })
    }

    /// An existing Kafka topic.
    #[must_use]
    pub fn of_kafka(address: &str, name: &str) -> Self {
        let address = address.to_owned();
        let name = name.to_owned();
        Self { broker: Broker::Kafka, address, name, arrivals: Vec::new(), beside: Vec::new() }
    }

    /// Makes a RabbitMQ topic whose dead messages go to `graves`.
    ///
    /// # Errors
    /// When the broker cannot be reached or refuses.
    pub async fn create_with_graves(graves: &Self) -> Result<Self> {
        let name = unique_name();
        rabbitmq::declare_with_graves(&graves.address, &name, &graves.name).await?;
        let address = graves.address.clone();
        Ok(Self { broker: Broker::RabbitMq, address, name, arrivals: Vec::new(), beside: Vec::new() })
    }

    /// Makes a RabbitMQ topic with a quorum queue, which drops a message that was given back more often than this.
    ///
    /// # Errors
    /// When the broker cannot be reached or refuses.
    pub async fn create_counting(returns: i32) -> Result<Self> {
        let address = Broker::RabbitMq.address().await?;
        let name = unique_name();
        rabbitmq::declare_counting(&address, &name, returns).await?;
        Ok(Self { broker: Broker::RabbitMq, address, name, arrivals: Vec::new(), beside: Vec::new() })
    }

    /// Makes a RabbitMQ topic with a quorum queue, which takes messages back that are not answered within this time.
    ///
    /// # Errors
    /// When the broker cannot be reached or refuses.
    pub async fn create_impatient(milliseconds: i32) -> Result<Self> {
        let address = Broker::RabbitMq.address().await?;
        let name = unique_name();
        rabbitmq::declare_impatient(&address, &name, milliseconds).await?;
        Ok(Self { broker: Broker::RabbitMq, address, name, arrivals: Vec::new(), beside: Vec::new() })
    }

    /// Makes a Kafka topic with one partition that takes this number of bytes at once, on the broker that tests share.
    ///
    /// # Errors
    /// When the broker cannot be reached or refuses.
    pub async fn create_narrow(bytes: usize) -> Result<Self> {
        let address = Broker::Kafka.address().await?;
        let name = unique_name();
        servers::create_topic_with(&address, &name, 1, &[("max.message.bytes", &bytes.to_string())]).await?;
        Ok(Self::of_kafka(&address, &name))
    }

    /// Prepares the topic for consumers beside the judge, who reads the topic itself. On Kafka they read it in a group;
    /// on RabbitMQ they read their own queue, which gets everything from now on. Returns the name of what they read.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn for_consumers(&self) -> Result<String> {
        match self.broker {
            Broker::Kafka => Ok(self.name.clone()),
            Broker::RabbitMq => {
                rabbitmq::declare_copy(&self.address, &self.name).await?;
                Ok(rabbitmq::copy(&self.name))
            }
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The broker.
    #[must_use]
    pub fn broker(&self) -> Broker {
        self.broker
    }

    /// The broker's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Reads up to the topic's present end. Returns everything that ever arrived, in the order of each partition or of
    /// the queue.
    ///
    /// # Errors
    /// When the broker does not answer, or a message is not one of the relay's.
    pub async fn read(&mut self) -> Result<&[Arrival]> {
        match self.broker {
            Broker::Kafka => {
                // After hours of load there is no room for both lists.
                self.arrivals = Vec::new();
                self.arrivals = kafka::read(&self.address, &self.name).await?;
                for topic in &self.beside {
                    self.arrivals.extend(kafka::read(&self.address, topic).await?);
                }
            }
            Broker::RabbitMq => {
                self.read_beside().await?;
                rabbitmq::take(&self.address, &self.name, &mut self.arrivals).await?;
            }
        }
        Ok(&self.arrivals)
    }

    /// Reads the queues made by [`Topic::beside`], and not the topic's own: that makes room in them.
    ///
    /// # Errors
    /// As [`Topic::read`].
    pub async fn read_beside(&mut self) -> Result<()> {
        for queue in &self.beside {
            rabbitmq::take(&self.address, queue, &mut self.arrivals).await?;
        }
        Ok(())
    }

    /// Makes one more RabbitMQ exchange with a queue that is read together with the topic's; returns its name. `room`:
    /// the number of messages beyond which the queue refuses more.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn beside(&mut self, room: Option<i32>) -> Result<String> {
        let name = unique_name();
        rabbitmq::declare(&self.address, &name, room).await?;
        self.beside.push(name.clone());
        Ok(name)
    }

    /// Makes one more Kafka topic, which is read together with this one; returns its name. It confirms a message if
    /// this number of replicas have it.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn beside_replicated(&mut self, least: usize) -> Result<String> {
        let name = unique_name();
        let least = least.to_string();
        servers::create_topic_with(&self.address, &name, PARTITIONS, &[("min.insync.replicas", &least)]).await?;
        self.beside.push(name.clone());
        Ok(name)
    }

    /// Makes a Kafka topic with this name, which is read together with this one.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn create_beside(&mut self, name: &str) -> Result<()> {
        servers::create_topic(&self.address, name, PARTITIONS).await?;
        self.beside.push(name.to_owned());
        Ok(())
    }

    /// Lets the queue of a RabbitMQ topic get messages with this routing key, too.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn bind(&self, routing_key: &str) -> Result<()> {
        rabbitmq::bind(&self.address, &self.name, routing_key).await
    }

    /// Deletes an exchange made by [`Topic::beside`], but not its queue.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn delete_exchange(&self, name: &str) -> Result<()> {
        rabbitmq::remove_exchange(&self.address, name).await
    }

    /// Makes an exchange again after [`Topic::delete_exchange`].
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn bring_back(&self, name: &str) -> Result<()> {
        rabbitmq::declare(&self.address, name, None).await
    }

    /// Removes it: a measurement must not leave its load on a server that others share.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn remove(self) -> Result<()> {
        match self.broker {
            Broker::Kafka => {
                for name in self.beside.iter().chain([&self.name]) {
                    servers::delete_topic(&self.address, name).await?;
                }
            }
            Broker::RabbitMq => {
                for name in self.beside.iter().chain([&self.name]) {
                    rabbitmq::remove(&self.address, name).await?;
                }
            }
        }
        Ok(())
    }
}

fn unique_name() -> String {
    format!("test-{}", Uuid::now_v7())
}

/// The time limit for a broker to answer a reader.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// The same for rdkafka.
fn patience() -> Timeout {
    Timeout::After(PATIENCE)
}
