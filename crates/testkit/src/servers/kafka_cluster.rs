//! Kafka: three nodes, one of which may be away.

use anyhow::{Context as _, Result, ensure};
use rdkafka::metadata::MetadataTopic;

use super::{
    Kafka,
    host::blocking,
    kafka::{Node, metadata},
    ports, wait,
};

const NODES: usize = 3;

/// Every message is on at least two nodes before it is confirmed. An absent node is noticed soon, and gets its
/// partitions back soon after its return: leaders move as often as they can.
const SETTINGS: &str = "\
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
leader.imbalance.check.interval.seconds=1
";

/// Three nodes, each broker and controller. Each action hits one node, and the next action the next one: all have their
/// turn.
#[derive(Debug)]
pub struct KafkaCluster {
    nodes: Vec<Kafka>,
    turn: usize,
}

impl KafkaCluster {
    /// Starts the nodes.
    ///
    /// # Errors
    /// When there is no server to start, when there is one in Docker only, or when a node does not answer.
    pub async fn start() -> Result<Self> {
        let nodes = blocking(|| {
            let controllers = (0..NODES).map(|_| ports::free_port()).collect::<Result<Vec<_>>>()?;
            let node = |id| Kafka::one_of(&Node { id, controllers: controllers.clone() }, SETTINGS);
            (1..=NODES).map(node).collect::<Result<Vec<_>>>()
        });
        let mut nodes = nodes.await?;
        for node in &mut nodes {
            node.ready().await?;
        }
        let cluster = Self { nodes, turn: 0 };
        cluster.caught_up().await?;
        Ok(cluster)
    }

    /// The addresses for clients: `127.0.0.1:port,…`.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        self.nodes.iter().map(Kafka::bootstrap).collect::<Vec<_>>().join(",")
    }

    /// Kills a node (SIGKILL).
    ///
    /// # Errors
    /// When it does not run.
    pub fn kill(&mut self) -> Result<()> {
        self.node()?.kill()
    }

    /// Stops a node in order: it gives away its leaderships first.
    ///
    /// # Errors
    /// When it does not run, or had to be killed.
    pub async fn stop(&mut self) -> Result<()> {
        self.node()?.stop().await
    }

    /// Freezes a node (SIGSTOP).
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&mut self) -> Result<()> {
        self.node()?.pause()
    }

    /// Resumes the frozen node, and waits until it has caught up.
    ///
    /// # Errors
    /// When it does not run, or does not catch up.
    pub async fn resume(&mut self) -> Result<()> {
        self.node()?.resume()?;
        self.next().await
    }

    /// Restarts the node that was killed or stopped, and waits until it has caught up.
    ///
    /// # Errors
    /// When it does not answer, or does not catch up.
    pub async fn restart(&mut self) -> Result<()> {
        self.node()?.restart().await?;
        self.next().await
    }

    /// Waits until the other nodes lead every partition, because the node that is away cannot.
    ///
    /// # Errors
    /// When they do not.
    pub async fn led_by_others(&self) -> Result<()> {
        let away = i32::try_from(self.turn + 1)?;
        for (_, node) in self.nodes.iter().enumerate().filter(|(place, _)| *place != self.turn) {
            wait::until(wait::PATIENCE, "the others to lead every partition", || {
                let bootstrap = node.bootstrap();
                blocking(move || led_without(&bootstrap, away))
            })
            .await?;
        }
        Ok(())
    }

    fn node(&mut self) -> Result<&mut Kafka> {
        self.nodes.get_mut(self.turn).context("no node has this number")
    }

    /// Waits until all nodes have all messages: only then may the next one go away.
    async fn next(&mut self) -> Result<()> {
        self.caught_up().await?;
        self.turn = (self.turn + 1) % NODES;
        Ok(())
    }

    /// A node that was away for a moment may not know of its lag yet, so that each one is asked.
    async fn caught_up(&self) -> Result<()> {
        for node in &self.nodes {
            wait::until(wait::PATIENCE, "the nodes to catch up", || {
                let bootstrap = node.bootstrap();
                blocking(move || in_sync(&bootstrap))
            })
            .await?;
        }
        Ok(())
    }
}

fn led_without(bootstrap: &str, away: i32) -> Result<()> {
    let metadata = metadata(bootstrap)?;
    for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions) {
        ensure!(partition.leader() > 0 && partition.leader() != away, "a partition has no leader that is there");
    }
    Ok(())
}

fn in_sync(bootstrap: &str) -> Result<()> {
    let metadata = metadata(bootstrap)?;
    ensure!(metadata.brokers().len() == NODES, "{} of {NODES} nodes are there", metadata.brokers().len());
    for partition in metadata.topics().iter().flat_map(MetadataTopic::partitions) {
        ensure!(partition.isr().len() == partition.replicas().len(), "a node lacks messages");
    }
    Ok(())
}
