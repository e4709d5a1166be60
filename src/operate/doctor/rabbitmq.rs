//! The exchanges and queues of a RabbitMQ sink.

use std::time::Instant;

use super::{DEADLINE, Destinations, Finding};
use crate::{
    config::RabbitMqConfig,
    sink::{
        PublishError,
        rabbitmq::{BrokerSession, ChannelFailure},
    },
};

/// Looks at the exchanges, and at the queues that the default exchange is to reach.
pub(super) async fn examine(name: &str, config: &RabbitMqConfig, destinations: &Destinations) -> Vec<Finding> {
    let bindings = "The bindings of exchanges, the types of queues and their delivery limits are not checked";
    let mut findings = vec![Finding::note("not_checked", format!("{bindings}: the sink {name}."))];
    let deadline = Instant::now() + DEADLINE;
    let looked = async {
        let session = BrokerSession::connect(config, name, deadline).await?;
        for (exchange, routing_key) in destinations {
            let (exchange, routing_key) = (exchange.as_str(), routing_key.as_str());
            if !exchange.is_empty() {
                if !session.has_exchange(exchange, deadline).await? {
                    findings.push(missing("exchange_missing", &format!("The exchange {exchange}"), name));
                }
            } else if !session.has_queue(routing_key, deadline).await? {
                findings.push(missing("queue_missing", &format!("The queue {routing_key}"), name));
            }
        }
        session.close(deadline).await;
        Ok::<_, ChannelFailure>(())
    };
    if let Err(error) = looked.await.map_err(PublishError::from) {
        findings.push(Finding::note("not_checked", format!("The exchanges of the sink {name}: {error}.")));
    }
    findings
}

fn missing(finding: &'static str, what: &str, sink: &str) -> Finding {
    let problem = Finding::problem(finding, format!("{what} of the sink {sink} does not exist."))
        .matters("Its messages wait for relay.unroutable_grace, then some of them are dead.");
    problem.fix("Declare it, durable, and bind a queue to it; or correct the route.")
}
