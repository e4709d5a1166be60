//! The outbox's tables and their rows.

use std::time::Duration;

use outbox_core::{
    SchemaError, check_schema,
    sqlx::{self, MySqlConnection},
    store::{
        claim::floor,
        operate::{
            controls, doctor,
            locked::{self, TableLock},
            stats::{LaneStats, Waiting},
        },
        schema::counters::{self, Behind},
        session,
    },
};
use outbox_relay::{
    operate::{
        shown::span,
        status::{self, LaneStatus},
        why,
    },
    state::session::describe,
};

use super::Finding;
use crate::config::Config;

/// How much longer than their retention receipts may stay.
const PURGE: Duration = Duration::from_hours(24);

/// The finding on a table that another session has locked.
pub(super) fn table_locked(lock: &TableLock) -> Finding {
    let matters = "Relays wait, and so do services that write to the table.";
    Finding::problem("table_locked", lock.to_string()).matters(matters)
}

/// Runs the checks of a relay's start and of `relay check --connect`: tables, counters, and one server for reads and
/// writes.
pub(crate) async fn start_up(db: &mut MySqlConnection, config: &Config) -> Vec<Finding> {
    let failed = |error: sqlx::Error| Finding::problem("database_failed", describe(&error));
    match locked::find(db).await {
        Ok(None) => {}
        Ok(Some(lock)) => return vec![table_locked(&lock)],
        Err(error) => return vec![failed(error)],
    }
    match check_schema(db).await {
        Ok(()) => {}
        Err(SchemaError::Database(error)) => return vec![failed(error)],
        Err(error) => {
            let problem = Finding::problem("schema", error.to_string()).matters("No relay works with these tables.");
            return vec![match error {
                SchemaError::Missing | SchemaError::Older { .. } => problem.shell("relay migrate up"),
                SchemaError::Engine { table, .. } => problem.sql(format!("ALTER TABLE {table} ENGINE = InnoDB;")),
                _ => problem,
            }];
        }
    }
    let rest: Result<_, sqlx::Error> =
        async { Ok((counters::behind(db).await?, session::servers(db).await?, floor::is_in_galera(db).await?)) }.await;
    let (behind, [read, write], is_in_galera) = match rest {
        Ok(rest) => rest,
        Err(error) => return vec![failed(error)],
    };
    let mut findings: Vec<_> = behind.iter().map(counter).collect();
    if read != write {
        findings.push(Finding::problem(
            "two_servers",
            format!(
                "one server answers reads ({read}) and another one writes ({write}), so that what is claimed may be \
                 read as it was: let the relay reach the primary without a proxy that splits reads and writes"
            ),
        ));
    }
    if is_in_galera {
        let age = config.relay.max_transaction_age.as_secs();
        findings.push(Finding::note(
            "galera",
            format!(
                "a node of a Galera cluster does not list the transactions of the others: messages of a transaction \
                 that is open for more than {age} s (relay.max_transaction_age) may come out of order"
            ),
        ));
    }
    findings
}

fn counter(behind: &Behind) -> Finding {
    let problem = Finding::problem("counter_behind", behind.to_string())
        .matters("Numbers would come again: messages would be deleted unsent, or taken for processed ones.");
    match behind {
        Behind::MessageIds { used, .. } => {
            problem.sql(format!("ALTER TABLE outbox_messages AUTO_INCREMENT = {};", used + 1))
        }
        Behind::Fence { least, .. } => {
            problem.sql(format!("UPDATE outbox_leases SET fence = {least} WHERE fence < {least};"))
        }
        _ => problem,
    }
}

/// Looks at the settings of the purge.
pub(super) fn retention(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(error) = config.retention.check_window() {
        let problem = Finding::problem("inbox_window", error.to_string())
            .matters("A message that is sent again after that time is processed twice.");
        findings.push(problem.fix("Raise retention.inbox, or lower retention.sent."));
    }
    if config.retention.sent.is_zero() {
        let note = Finding::note("never_purged", "retention.sent is 0: sent messages are kept for ever.")
            .matters("outbox_messages and outbox_sent grow without bound.");
        findings.push(note.fix("Set retention.sent, or delete the rows yourself."));
    }
    findings
}

/// Looks at the rows.
pub(super) async fn examine(db: &mut MySqlConnection, config: &Config) -> Result<Vec<Finding>, sqlx::Error> {
    let mut findings = Vec::new();
    let views = doctor::unusable_views(db).await?;
    if !views.is_empty() {
        let evidence = format!(
            "{} cannot be read: the account that made it is missing here, or lacks privileges.",
            views.join(", ")
        );
        let risk =
            Finding::risk("view_unusable", evidence).matters("relay why and relay messages fail, and so do replays.");
        findings.push(risk.fix("Create that account, and run deploy/grants/migrator.sql for it."));
    }
    for pause in controls::paused(db).await? {
        let kind = &pause.kind;
        let name = &pause.name;
        let actor = &pause.actor;
        let reason = &pause.reason;
        let found = match pause.ends_at {
            None => {
                Finding::risk("paused", format!("{actor} has paused the {kind} {name} ({reason}), without an end."))
            }
            Some(_) => Finding::note("paused", format!("{actor} has paused the {kind} {name} ({reason}) for a while.")),
        };
        let command = format!("relay resume --{kind} {} --because 'the pause is over'", quoted(name));
        let matters =
            if kind == "instance" { "It claims nothing, and the others take its work." } else { "Its messages wait." };
        findings.push(found.matters(matters).fix("When it may go on:").shell(command));
    }
    for (lane, judged) in status::judged(db).await?.lanes {
        findings.extend(lane_findings(&lane, &judged));
    }
    if let Some(job) = doctor::idle_job(db).await? {
        let problem =
            Finding::problem("job_idle", format!("No relay carries out job {job}: it has been due for a minute."));
        findings.push(
            problem
                .fix("Start a relay of this release. To give the job up:")
                .shell(format!("relay jobs stop {job} --because 'no longer needed'")),
        );
    }
    let kept = config.retention.sent + PURGE;
    let late = doctor::oldest_receipt(db)
        .await?
        .filter(|age| i128::from(*age) > i128::try_from(kept.as_micros()).unwrap_or(i128::MAX));
    if let Some(age) = late.filter(|_| !config.retention.sent.is_zero()) {
        let evidence =
            format!("The oldest receipt is {} old, and retention.sent is {:?}.", span(age), config.retention.sent);
        let risk = Finding::risk("purge_behind", evidence).matters("The tables grow, and looks become slow.");
        findings.push(risk.fix(
            "Start a relay. If one runs, its log and outbox_relay_purged_messages_total say why it does not purge.",
        ));
    }
    Ok(findings)
}

fn lane_findings(lane: &LaneStats, judged: &LaneStatus) -> Vec<Finding> {
    let number = lane.lane;
    let mut findings = Vec::new();
    let verdict = || format!("Lane {number}: {}", judged.verdict);
    match judged.state {
        "unserved" => findings.push(
            Finding::problem("lane_unserved", verdict())
                .fix(format!("Start a relay that serves lane {number}, or resume one that is drained.")),
        ),
        "stuck" => findings.push(
            Finding::problem("lane_stuck", verdict())
                .fix("Look at the relay's log, and at the sink of these messages."),
        ),
        _ => {}
    }
    for waiting @ Waiting { reason, messages, .. } in &lane.delayed {
        let Some(remedy) = why::remedy(reason, &waiting.error) else { continue };
        let cause = status::cause(waiting);
        let count = count(*messages, "waits", "wait");
        let evidence = format!("In lane {number}, {count} ({reason}){cause}.");
        findings.push(
            Finding::risk("messages_wait", evidence)
                .fix(format!(
                    "To let them go on: {remedy}. Then, with an account of operator.sql, for the plan of a \
                              retry at once:"
                ))
                .shell(format!("relay delayed retry --reason {} --lane {number}", quoted(reason))),
        );
    }
    if lane.dead > 0 {
        let evidence = format!("In lane {number}, {}.", count(lane.dead, "is dead", "are dead"));
        let risk = Finding::risk("dead_messages", evidence)
            .matters("They are not published, and the retention deletes those that hold no key.");
        findings.push(
            risk.fix("Look for the cause, then retry, release or discard them.")
                .shell(format!("relay dead list --group-by error --lane {number}")),
        );
    }
    findings
}

fn count(messages: u64, one: &str, more: &str) -> String {
    if messages == 1 { format!("1 message {one}") } else { format!("{messages} messages {more}") }
}

/// A text for a shell.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_for_a_shell_stays_one_word() {
        assert_eq!(quoted("kafka/orders"), "kafka/orders");
        assert_eq!(quoted("it's; rm -rf ~"), r"'it'\''s; rm -rf ~'");
        assert_eq!(quoted(""), "''");
    }
}
