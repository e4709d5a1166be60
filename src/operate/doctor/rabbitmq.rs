//! The exchanges and queues of a RabbitMQ sink.

use std::time::Instant;

use super::{DEADLINE, Destinations, Finding, management::Management, queues};
use crate::{
    config::RabbitMqConfig,
    sink::{
        PublishError,
        rabbitmq::{BrokerSession, ChannelFailure},
    },
};

/// Looks at the exchanges, at the queues that the default exchange is to reach, and at those that bindings lead to.
pub(super) async fn examine(name: &str, config: &RabbitMqConfig, destinations: &Destinations) -> Vec<Finding> {
    let (mut findings, mut existing) = (Vec::new(), Destinations::new());
    let looked = exist(name, config, destinations, &mut findings, &mut existing).await;
    if let Err(error) = looked.map_err(PublishError::from) {
        findings.push(Finding::note("not_checked", format!("The exchanges of the sink {name}: {error}.")));
    }
    match Management::new(name, config, DEADLINE) {
        Err(note) => findings.push(note),
        Ok(api) => {
            let asked = tokio::task::spawn_blocking(move || queues::examine(&api, &existing)).await;
            findings.extend(asked.unwrap_or_else(|error| vec![Finding::note("not_checked", error.to_string())]));
        }
    }
    findings
}

/// Separates the destinations that exist from those that are missing.
async fn exist(
    name: &str,
    config: &RabbitMqConfig,
    destinations: &Destinations,
    findings: &mut Vec<Finding>,
    existing: &mut Destinations,
) -> Result<(), ChannelFailure> {
    let deadline = Instant::now() + DEADLINE;
    let session = BrokerSession::connect(config, name, deadline).await?;
    findings.extend(channels(name, session.channels().count(), config.channels));
    for (exchange, routing_key) in destinations {
        let (is_there, finding) = match (exchange.as_str(), routing_key.as_deref()) {
            // A queue with the name of a key or a lane.
            ("", None) => continue,
            ("", Some(queue)) => {
                let missing = missing("queue_missing", &format!("The queue {queue}"), name);
                (session.has_queue(queue, deadline).await?, missing)
            }
            (exchange, _) => {
                let missing = missing("exchange_missing", &format!("The exchange {exchange}"), name);
                (session.has_exchange(exchange, deadline).await?, missing)
            }
        };
        if is_there {
            existing.insert((exchange.clone(), routing_key.clone()));
        } else if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    session.close(deadline).await;
    Ok(())
}

fn channels(sink: &str, open: usize, configured: usize) -> Option<Finding> {
    let risk = || {
        Finding::risk("fewer_channels", format!("The sink {sink} gets {open} of its {configured} channels."))
            .matters("It publishes more slowly, and a queue that confirms nothing holds up messages of others.")
            .fix(format!(
                "Raise channel_max of the broker, or max-channels of the user (`rabbitmqctl set_user_limits`); or set \
                 `sinks.{sink}.channels` to {open}."
            ))
    };
    (open < configured).then(risk)
}

fn missing(finding: &'static str, what: &str, sink: &str) -> Finding {
    let problem = Finding::problem(finding, format!("{what} of the sink {sink} does not exist."))
        .matters("Its messages wait for relay.unroutable_grace, then some of them are dead.");
    problem.fix("Declare it, durable, and bind a queue to it; or correct the route.")
}
