//! The queues that messages reach: their kind, their limits, and their consumers.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Finding, RoutedDestinations, WAITS,
    bindings::{Reached, reached},
    management::ManagementApi,
    tables::quoted,
};

/// The limits of a queue that delete messages.
const DROPS: [&str; 3] = ["message-ttl", "max-length", "max-length-bytes"];
/// The attributes of [`QueueInfo`].
const QUEUE: &str = "type,durable,auto_delete,exclusive,arguments,policy,effective_policy_definition,delivery_limit,members,slave_nodes,\
                     messages,consumers";

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct QueueInfo {
    #[serde(rename = "type")]
    kind: String,
    durable: bool,
    auto_delete: bool,
    exclusive: bool,
    arguments: Value,
    policy: Option<String>,
    effective_policy_definition: Value,
    /// Older releases do not have it.
    delivery_limit: Value,
    members: Vec<String>,
    slave_nodes: Value,
    messages: u64,
    /// `None` as long as the node has no statistics of a new queue.
    consumers: Option<u64>,
}

impl QueueInfo {
    /// A setting, by an argument or a policy.
    fn setting(&self, name: &str) -> Option<&Value> {
        let argument = self.arguments.get(format!("x-{name}"));
        argument.or_else(|| self.effective_policy_definition.get(name))
    }

    /// The number of failed deliveries after which it drops a message.
    fn delivery_limit(&self, default: Option<u64>) -> Option<u64> {
        match (&self.delivery_limit, self.setting("delivery-limit")) {
            (Value::Null, None) => default,
            (Value::Null, Some(limit)) | (limit, _) => limit.as_u64(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct Node {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Overview {
    rabbitmq_version: String,
}

/// The broker of a sink.
struct QueueBroker<'a> {
    sink: &'a str,
    vhost: &'a str,
    nodes: Vec<String>,
    /// The delivery limit of quorum queues without one of their own.
    delivery_limit: Option<u64>,
}

/// Looks at what messages for these exchanges reach. They exist. Blocks.
pub(super) fn examine(api: &ManagementApi, destinations: &RoutedDestinations) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(note) = look(api, destinations, &mut findings) {
        findings.push(note);
    }
    findings
}

fn look(api: &ManagementApi, destinations: &RoutedDestinations, findings: &mut Vec<Finding>) -> Result<(), Finding> {
    let nodes: Vec<Node> = api.get(&["nodes"], "name")?;
    let Overview { rabbitmq_version } = api.get(&["overview"], "rabbitmq_version")?;
    let major = rabbitmq_version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    let broker = QueueBroker {
        sink: &api.sink,
        vhost: &api.vhost,
        nodes: nodes.into_iter().map(|node| node.name).collect(),
        delivery_limit: major.filter(|major| *major >= 4).map(|_| 20),
    };
    let mut queues = BTreeSet::new();
    for (exchange, routing_key) in destinations {
        match reached(api, exchange, routing_key.as_deref())? {
            Reached::Queues(found) => queues.extend(found),
            Reached::None { bindings } => {
                let finding = broker.unbound(exchange, routing_key.as_deref().filter(|_| bindings > 0));
                if !findings.contains(&finding) {
                    findings.push(finding);
                }
            }
        }
    }
    for name in queues {
        let queue: QueueInfo = api.get(&["queues", &api.vhost, &name], QUEUE)?;
        findings.extend(broker.judge(&name, &queue));
    }
    Ok(())
}

impl QueueBroker<'_> {
    fn unbound(&self, exchange: &str, routing_key: Option<&str>) -> Finding {
        let key = routing_key.map(|key| format!(" for the routing key {key}")).unwrap_or_default();
        let evidence = format!("The exchange {exchange} of the sink {} leads to no queue{key}.", self.sink);
        let problem = Finding::problem("exchange_unbound", evidence).matters(WAITS);
        problem.fix("Bind a queue to it, or correct the route.")
    }

    fn judge(&self, name: &str, queue: &QueueInfo) -> Vec<Finding> {
        let found = [
            self.durability(name, queue),
            self.replicas(name, queue),
            self.delivery_limit(name, queue),
            self.drops(name, queue),
            self.consumers(name, queue),
        ];
        found.into_iter().flatten().collect()
    }

    fn durability(&self, name: &str, queue: &QueueInfo) -> Option<Finding> {
        let what = match queue {
            QueueInfo { exclusive: true, .. } => "ends with its connection (exclusive)",
            QueueInfo { auto_delete: true, .. } => "is deleted with its last consumer (auto-delete)",
            QueueInfo { durable: false, .. } => "is not durable",
            queue if queue.setting("expires").is_some() => {
                "is deleted when no consumer uses it for a while (x-expires)"
            }
            _ => return None,
        };
        let risk = Finding::risk("queue_not_durable", format!("The queue {name} of the sink {} {what}.", self.sink))
            .matters("Its messages are lost with it, though they are marked as sent.");
        Some(risk.fix("Bind a durable queue in its place, with the argument x-queue-type = quorum."))
    }

    fn replicas(&self, name: &str, queue: &QueueInfo) -> Option<Finding> {
        let is_quorum = queue.kind == "quorum";
        let copies = if queue.kind == "classic" {
            1 + queue.slave_nodes.as_array().map_or(0, Vec::len)
        } else {
            queue.members.len()
        };
        if self.nodes.len() < 2 || copies != 1 {
            return None;
        }
        let evidence = format!(
            "The queue {name} ({}) of the sink {} is on one of {} nodes.",
            queue.kind,
            self.sink,
            self.nodes.len()
        );
        let risk = Finding::risk("queue_one_replica", evidence)
            .matters("The loss of that node's disk loses messages that are marked as sent.");
        if !is_quorum {
            return Some(risk.fix("Bind a queue in its place that has the argument x-queue-type = quorum."));
        }
        let others = self.nodes.iter().filter(|node| !queue.members.contains(node)).take(2);
        let vhost = quoted(self.vhost);
        let queue = quoted(name);
        let add = |node: &String| format!("rabbitmq-queues add_member --vhost {vhost} {queue} {}", quoted(node));
        Some(risk.fix("Add members:").shell(others.map(add).collect::<Vec<_>>().join("\n")))
    }

    fn delivery_limit(&self, name: &str, queue: &QueueInfo) -> Option<Finding> {
        let limit = queue.delivery_limit(self.delivery_limit).filter(|_| queue.kind == "quorum")?;
        let evidence =
            format!("The queue {name} of the sink {} drops a message after {limit} failed deliveries.", self.sink);
        let risk = Finding::risk("delivery_limit", evidence)
            .matters("A message that a consumer rejects, or that ends it, is lost.");
        self.dead_letters(name, queue, risk)
    }

    fn drops(&self, name: &str, queue: &QueueInfo) -> Option<Finding> {
        let overflow = queue.setting("overflow").and_then(Value::as_str).unwrap_or("drop-head");
        let is_dropping = |name: &&str| *name == "message-ttl" || overflow == "drop-head";
        let limits = DROPS.iter().filter(|name| is_dropping(name));
        let limits: Vec<_> = limits.filter_map(|name| Some(format!("{name} = {}", queue.setting(name)?))).collect();
        if limits.is_empty() || queue.kind == "stream" {
            return None;
        }
        let evidence = format!("The queue {name} of the sink {} drops messages: {}.", self.sink, limits.join(", "));
        let risk = Finding::risk("queue_drops", evidence)
            .matters("Messages that no consumer has taken are lost, though they are marked as sent.");
        self.dead_letters(name, queue, risk)
    }

    /// Adds the fix: a queue for what this one drops. `None` if it has one.
    fn dead_letters(&self, name: &str, queue: &QueueInfo, risk: Finding) -> Option<Finding> {
        if queue.setting("dead-letter-exchange").is_some() {
            return None;
        }
        if let Some(policy) = &queue.policy {
            return Some(risk.fix(format!("Add dead-letter-exchange to its policy {policy}.")));
        }
        let dead = format!("{name}.dead");
        let definition = json!({ "dead-letter-exchange": "", "dead-letter-routing-key": dead }).to_string();
        let special = |c: char| c.is_ascii_punctuation() && !"_-".contains(c);
        let literal: String = name.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect();
        let [vhost, policy, pattern, definition] =
            [self.vhost, &dead, &format!("^{literal}$"), &definition].map(quoted);
        let command =
            format!("rabbitmqctl set_policy --vhost {vhost} --apply-to queues {policy} {pattern} {definition}");
        Some(risk.fix(format!("Declare the durable queue {dead} for them, then:")).shell(command))
    }

    fn consumers(&self, name: &str, queue: &QueueInfo) -> Option<Finding> {
        let messages = queue.messages;
        let sink = self.sink;
        let note = || {
            let evidence = format!("The queue {name} of the sink {sink} has {messages} messages and no consumer.");
            Finding::note("queue_unread", evidence).fix("Start its consumer, or remove its binding.")
        };
        (queue.consumers == Some(0) && messages > 0).then(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(nodes: usize, delivery_limit: Option<u64>) -> QueueBroker<'static> {
        let nodes = (1..=nodes).map(|number| format!("rabbit@{number}")).collect();
        QueueBroker { sink: "r", vhost: "/", nodes, delivery_limit }
    }

    fn queue(json: Value) -> QueueInfo {
        let mut all = json!({"type": "quorum", "durable": true, "members": ["rabbit@1"], "consumers": 1, "delivery_limit": "unlimited"});
        let (Value::Object(all), Value::Object(json)) = (&mut all, json) else { panic!("no objects") };
        all.extend(json);
        serde_json::from_value(Value::Object(all.clone())).unwrap()
    }

    #[test]
    fn each_queue_has_its_finding() {
        let found = |broker: &QueueBroker<'_>, json: Value| {
            broker.judge("q", &queue(json)).iter().map(|it| it.finding).collect::<Vec<_>>()
        };
        let alone = broker(1, Some(20));
        let cluster = broker(3, Some(20));
        let classic = |json: Value| found(&cluster, json);
        assert_eq!(found(&alone, json!({})), [""; 0]);
        assert_eq!(found(&alone, json!({"type": "classic"})), [""; 0]);
        assert_eq!(classic(json!({"type": "classic"})), ["queue_one_replica"]);
        assert_eq!(classic(json!({"type": "classic", "slave_nodes": ["rabbit@2"]})), [""; 0]);
        assert_eq!(classic(json!({"members": ["rabbit@1", "rabbit@2", "rabbit@3"]})), [""; 0]);
        let member = cluster.judge("q", &queue(json!({}))).pop().and_then(|it| it.command);
        assert_eq!(
            member.as_deref(),
            Some("rabbitmq-queues add_member --vhost / q rabbit@2\nrabbitmq-queues add_member --vhost / q rabbit@3")
        );
        for json in [
            json!({"durable": false}),
            json!({"auto_delete": true}),
            json!({"exclusive": true}),
            json!({"arguments": {"x-expires": 1}}),
        ] {
            assert_eq!(found(&alone, json), ["queue_not_durable"]);
        }
        assert_eq!(found(&alone, json!({"messages": 1, "consumers": 0})), ["queue_unread"]);
        assert_eq!(found(&alone, json!({"messages": 1, "consumers": null})), [""; 0]);
    }

    #[test]
    fn messages_that_a_queue_drops_are_lost_without_a_dead_letter_exchange() {
        let found = |broker: &QueueBroker<'_>, json: Value| {
            broker.judge("q", &queue(json)).iter().map(|it| it.finding).collect::<Vec<_>>()
        };
        let new = broker(1, Some(20));
        let old = broker(1, None);
        assert_eq!(found(&new, json!({"delivery_limit": 20})), ["delivery_limit"]);
        assert_eq!(found(&new, json!({"delivery_limit": null})), ["delivery_limit"]);
        assert_eq!(found(&old, json!({"delivery_limit": null})), [""; 0]);
        assert_eq!(
            found(&old, json!({"delivery_limit": null, "arguments": {"x-delivery-limit": 3}})),
            ["delivery_limit"]
        );
        assert_eq!(found(&new, json!({"delivery_limit": null, "arguments": {"x-delivery-limit": -1}})), [""; 0]);
        let dead = json!({"dead-letter-exchange": ""});
        assert_eq!(found(&new, json!({"delivery_limit": 20, "effective_policy_definition": dead})), [""; 0]);
        for json in [
            json!({"arguments": {"x-message-ttl": 1}}),
            json!({"arguments": {"x-max-length": 1}}),
            json!({"arguments": {"x-message-ttl": 1, "x-overflow": "reject-publish"}}),
            json!({"effective_policy_definition": {"max-length-bytes": 1}, "policy": "p"}),
        ] {
            assert_eq!(found(&new, json), ["queue_drops"]);
        }
        assert_eq!(found(&new, json!({"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}})), [""; 0]);
        assert_eq!(found(&new, json!({"type": "stream", "arguments": {"x-max-length-bytes": 1}})), [""; 0]);
        assert_eq!(found(&new, json!({"arguments": {"x-max-length": 1, "x-dead-letter-exchange": "d"}})), [""; 0]);
        let fix = new.judge("a.b", &queue(json!({"delivery_limit": 20}))).pop().and_then(|it| it.command);
        let command = "rabbitmqctl set_policy --vhost / --apply-to queues a.b.dead '^a\\.b$' \
                       '{\"dead-letter-exchange\":\"\",\"dead-letter-routing-key\":\"a.b.dead\"}'";
        assert_eq!(fix.as_deref(), Some(command));
        let named = new.judge("q", &queue(json!({"delivery_limit": 20, "policy": "p"}))).pop().unwrap();
        assert_eq!((named.fix.as_str(), named.command), ("Add dead-letter-exchange to its policy p.", None));
    }
}
