//! The table of all metrics.

/// A metric: its name, its labels and what it means. The table from which all are made, and from which docs/metrics.md
/// is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Metric {
    /// The whole name.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// Its meaning.
    pub help: &'static str,
}

const fn metric(kind: &'static str, name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind, labels, help }
}

/// All metrics but those of the process (`process_*`).
pub const METRICS: &[Metric] = &[
    metric(
        "counter",
        "outbox_relay_claims_total",
        &["result"],
        "Passes of the claimers: claimed, empty, conflict (another relay was faster) or error.",
    ),
    metric("counter", "outbox_relay_claimed_messages_total", &[], "Messages claimed."),
    metric("histogram", "outbox_relay_claim_duration_seconds", &[], "A pass that claimed: look and claim."),
    metric(
        "counter",
        "outbox_relay_publish_attempts_total",
        &["sink", "destination"],
        "Messages handed to a sink. Destinations beyond the first 200 of a relay are `other`, here and below.",
    ),
    metric(
        "counter",
        "outbox_relay_publish_failures_total",
        &["sink", "destination", "reason"],
        "Messages that were not confirmed: unavailable, unconfirmed, or why the broker rejected them.",
    ),
    metric("counter", "outbox_relay_published_messages_total", &["sink"], "Messages that the broker confirmed."),
    metric("counter", "outbox_relay_published_bytes_total", &["sink"], "Bytes of payload handed to a sink."),
    metric(
        "histogram",
        "outbox_relay_publish_duration_seconds",
        &["sink"],
        "A batch, from handing it over to its last confirmation.",
    ),
    metric(
        "histogram",
        "outbox_relay_delivery_latency_seconds",
        &[],
        "From the time at which a message is due (enqueue or schedule, database clock) to the broker's confirmation; \
         of a replayed one, from its reading.",
    ),
    metric(
        "histogram",
        "outbox_relay_settle_duration_seconds",
        &["outcome"],
        "Writing back a claim: settled, lost (the fence refused it) or error.",
    ),
    metric(
        "gauge",
        "outbox_relay_in_flight_messages",
        &[],
        "Messages that are claimed and of which nothing is known yet.",
    ),
    metric(
        "counter",
        "outbox_relay_retries_scheduled_total",
        &["reason"],
        "Messages that wait for a time: unconfirmed, rejected, behind (in the queue of their key), turned_away (an \
         earlier one failed), parked (their sink is down, or their destination confirms nothing), snoozed (their \
         handler has put them off), paused, unroutable (their destination takes nothing), no_route, no_sink (a replay \
         names a sink that the relay lacks), unread.",
    ),
    metric(
        "counter",
        "outbox_relay_dead_messages_total",
        &["reason"],
        "Messages given up: expired, attempts_exhausted, invalid, message_missing, or why the broker rejected them.",
    ),
    metric(
        "counter",
        "outbox_relay_lease_renewals_total",
        &["result"],
        "Leases renewed, lost, or not renewed: because of an error, or because their rows were locked.",
    ),
    metric("counter", "outbox_relay_lease_takeovers_total", &[], "Claims taken over after their lease had passed."),
    metric("counter", "outbox_relay_leases_lost_total", &[], "Claims of this relay that another has taken over."),
    metric(
        "counter",
        "outbox_relay_late_commits_total",
        &[],
        "Messages that were committed after the floor had passed them: delivered, perhaps out of order.",
    ),
    metric(
        "counter",
        "outbox_relay_possible_duplicates_total",
        &["cause"],
        "Messages that may have been or will be sent twice: takeover, unconfirmed, or resent by the sink itself.",
    ),
    metric("gauge", "outbox_relay_lanes", &[], "Lanes that had messages since the relay was started."),
    metric("gauge", "outbox_relay_tailed_lanes", &[], "Lanes whose rows this relay takes from the binary log."),
    metric(
        "counter",
        "outbox_relay_tail_ends_total",
        &["reason"],
        "Tails that have ended, or were not made, by the reason in one word: see docs/deployment.md.",
    ),
    metric("counter", "outbox_relay_tail_missed_total", &[], "Pending rows that the binary log did not show."),
    metric("gauge", "outbox_relay_sink_connected", &["sink"], "1 while the sink takes messages."),
    metric(
        "gauge",
        "outbox_relay_paused",
        &["kind", "name"],
        "1 while a lane, sink or destination is paused by an operator.",
    ),
    metric(
        "gauge",
        "outbox_relay_refusing_destinations",
        &["sink", "destination"],
        "Destinations that take no messages: they do not exist, nothing is bound to them, the relay may not write \
         there, or they confirm nothing while others do (on RabbitMQ: routing keys of an exchange). Their messages \
         wait.",
    ),
    metric(
        "histogram",
        "outbox_relay_db_call_duration_seconds",
        &["operation"],
        "Database calls, failed ones included: one round trip each, however many statements travel in it (a purge: \
         some more).",
    ),
    metric("gauge", "outbox_relay_database_connected", &[], "1 while the database answers this relay."),
    metric(
        "counter",
        "outbox_relay_db_errors_total",
        &["operation", "kind"],
        "Database calls that failed: lost (connection or deadline), refused (by the server) or locked (another session \
         has locked a table).",
    ),
    metric(
        "gauge",
        "outbox_relay_loop_last_success_timestamp_seconds",
        &["loop"],
        "When a loop last came round: claim, settle, renew, promote, takeover, pauses, jobs, purge, stats.",
    ),
    metric(
        "gauge",
        "outbox_relay_canary_last_return_timestamp_seconds",
        &["topic"],
        "When the relay's own message last came back from its destination, or the start of the relay. Only with \
         `canary.topic`.",
    ),
    metric(
        "gauge",
        "outbox_relay_canary_last_duration_seconds",
        &["topic"],
        "The time from its commit to its arrival. Only with `canary.topic`.",
    ),
    metric("counter", "outbox_relay_purged_messages_total", &["table"], "Rows deleted after their retention."),
    metric(
        "gauge",
        "outbox_relay_inbox_window_too_short",
        &[],
        "1 where a message that was sent is kept, and can be sent again, for longer than the inbox remembers it.",
    ),
    metric("gauge", "outbox_relay_build_info", &["version"], "1."),
    metric(
        "gauge",
        "outbox_queue_messages",
        &["state"],
        "Messages in the database, the same from every relay: pending, leased (of these, claimed), delayed, dead, \
         expired (of these, those that expired).",
    ),
    metric(
        "gauge",
        "outbox_queue_lag_seconds",
        &["cause"],
        "For how long the message with the lowest id has been due (enqueue or schedule), by what it waits for: due \
         (nothing: it is to be sent), retry, parked (a sink, destination or route that takes nothing), blocked (an \
         earlier message of its key), paused, scheduled (its time has passed, and no relay has made it pending).",
    ),
    metric(
        "gauge",
        "outbox_queue_stalled_lanes",
        &["state"],
        "Lanes of which no message was sent for a minute while some are due: stuck (live relays serve it) or unserved.",
    ),
    metric(
        "gauge",
        "outbox_queue_blocked_keys",
        &[],
        "Keys whose first message is dead, or waits for an operator (unroutable, no_route, no_sink, unread, paused).",
    ),
    metric(
        "gauge",
        "outbox_queue_next_dead_purge_timestamp_seconds",
        &[],
        "When the retention deletes the oldest dead message, apart from expired ones, by the database's clock; 0 if \
         there is none or the retention is 0.",
    ),
    metric(
        "gauge",
        "outbox_queue_expired_leases",
        &[],
        "Claims whose lease has passed and that no relay has taken over.",
    ),
    metric(
        "gauge",
        "outbox_queue_observed_timestamp_seconds",
        &[],
        "When the queue was counted, by the database's clock.",
    ),
    metric(
        "gauge",
        "outbox_relay_instances",
        &["role", "state"],
        "Relays and workers by their heartbeats: live, draining, drained or gone.",
    ),
];
