//! The cluster that answers at a sink's address. Another one behind the same address has neither the topics' earlier
//! messages nor this producer's numbers.

use parking_lot::Mutex;

/// The id of the cluster that answered last.
#[derive(Debug, Default)]
pub(super) struct Cluster(Mutex<Option<String>>);

impl Cluster {
    /// Notes the cluster that answers. Returns whether another one answered before.
    pub(super) fn note(&self, id: &str) -> bool {
        let before = self.0.lock().replace(id.to_owned());
        match before {
            Some(before) if before == id => false,
            Some(before) => {
                tracing::warn!(
                    before,
                    now = id,
                    "another Kafka cluster answers at this address: later messages go there"
                );
                true
            }
            None => {
                tracing::info!(id, "the Kafka cluster");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cluster;

    #[test]
    fn another_cluster_is_noticed_once() {
        let cluster = Cluster::default();
        assert_eq!(["a", "a", "b", "b", "a"].map(|id| cluster.note(id)), [false, false, true, false, true]);
    }
}
