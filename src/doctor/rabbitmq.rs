//! The exchanges and queues of a RabbitMQ sink.

use std::time::Instant;

use outbox_relay::sink::{
    PublishError,
    rabbitmq::{BrokerSession, ChannelFailure},
};

use super::{DEADLINE, Finding, RoutedDestinations, WAITS, management::ManagementApi, queues};
use crate::config::RabbitMqConfig;

/// Looks at the exchanges, at the queues that the default exchange is to reach, and at those that bindings lead to.
pub(super) async fn examine(name: &str, config: &RabbitMqConfig, destinations: &RoutedDestinations) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut existing = RoutedDestinations::new();
    let looked = exist(name, config, destinations, &mut findings, &mut existing).await;
    if let Err(error) = looked.map_err(PublishError::from) {
        findings.push(Finding::note("not_checked", format!("The exchanges of the sink {name}: {error}.")));
    }
    match ManagementApi::new(name, config, DEADLINE) {
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
    destinations: &RoutedDestinations,
    findings: &mut Vec<Finding>,
    existing: &mut RoutedDestinations,
) -> Result<(), ChannelFailure> {
    let deadline = Instant::now() + DEADLINE;
    let session = BrokerSession::connect(config, name, deadline).await?;
    findings.extend(channels(name, session.count(), config.channels));
    for (exchange, routing_key) in destinations {
        let key = routing_key.as_deref();
        let (is_there, finding) = match (exchange.as_str(), key) {
            // A queue with the name of a key or a lane.
            ("", None) => (true, None),
            ("", Some(queue)) => {
                let missing = missing("queue_missing", &format!("The queue {queue}"), name);
                (session.has_queue(queue, deadline).await?, Some(missing))
            }
            (exchange, _) => {
                let missing = missing("exchange_missing", &format!("The exchange {exchange}"), name);
                (session.has_exchange(exchange, deadline).await?, Some(missing))
            }
        };
        let finding = if is_there {
            let refusal = session.refuses(exchange, key.unwrap_or_default(), deadline).await?;
            // The right may be one for some routing keys.
            let refusal = refusal.filter(|refusal| key.is_some() || !refusal.contains("access to topic"));
            refusal.map(|refusal| refuses(exchange, name, &refusal))
        } else {
            finding
        };
        findings.extend(finding.filter(|finding| !findings.contains(finding)));
        if is_there && !(exchange.is_empty() && key.is_none()) {
            existing.insert((exchange.clone(), routing_key.clone()));
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

fn refuses(exchange: &str, sink: &str, refusal: &str) -> Finding {
    let exchange = if exchange.is_empty() { "default exchange".to_owned() } else { format!("exchange {exchange}") };
    let problem =
        Finding::problem("exchange_refuses", format!("The {exchange} of the sink {sink} refuses messages: {refusal}."));
    problem
        .matters(WAITS)
        .fix("Do what the refusal says. `rabbitmqctl set_permissions` replaces the permissions that a user has.")
}

fn missing(finding: &'static str, what: &str, sink: &str) -> Finding {
    let problem = Finding::problem(finding, format!("{what} of the sink {sink} does not exist.")).matters(WAITS);
    problem.fix(match finding {
        "queue_missing" => "Declare it, durable, with the argument x-queue-type = quorum; or correct the route.",
        _ => "Declare it, durable, and bind a queue to it; or correct the route.",
    })
}
