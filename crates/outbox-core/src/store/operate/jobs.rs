//! Orders of operators: jobs, their batches, and the audit.

use std::{collections::BTreeSet, time::Duration};

use sqlx::{MySqlConnection, Row as _, mysql::MySqlRow};

use crate::store::{
    claim::tail,
    enqueue::micros,
    operate::replay::{Again, values},
    text::{Ids, Text, Utf8, listed, sql},
};

/// A change of delayed, dead or sent messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobChange<'a> {
    /// Make delayed messages pending before their time. Those in the queue of their key stay.
    Hurry,
    /// Make dead messages pending, with no attempt spent.
    Retry,
    /// Let the later messages of dead ones' keys go on; they stay dead.
    Release,
    /// Delete dead messages. The later messages of their keys go on.
    Discard,
    /// Delete the delayed rows of messages that a replay has put there. The messages stay, as sent.
    DiscardDelayed,
    /// Make these sent messages pending again, with a mark for their header. They may be of several lanes. The text
    /// names the sink and the destination that get them in place of those of their routes.
    Replay(&'a [Again], Option<&'a str>),
}

impl JobChange<'_> {
    /// The table, and a condition on its rows `d`.
    fn rows(self) -> (&'static str, &'static str) {
        match self {
            Self::Hurry => ("outbox_delayed", " AND d.due_at < TIMESTAMP'9999-12-31 00:00:00'"),
            Self::DiscardDelayed => {
                ("outbox_delayed", " STRAIGHT_JOIN outbox_replays r FORCE INDEX (PRIMARY) ON r.id = d.id")
            }
            // One that has died since the order was in no plan: another job has put it back after this batch was read.
            Self::Retry | Self::Release | Self::Discard => ("outbox_dead", " AND d.died_at <= j.created_at"),
            // They have no row but that of their contents.
            Self::Replay(..) => ("outbox_pending", ""),
        }
    }
}

/// The operator of an order, and the reason.
#[derive(Debug, Clone, Copy)]
pub struct Actor<'a> {
    /// The name that the program gave, at most 100 characters.
    pub name: &'a str,
    /// The program: `cli`.
    pub via: &'static str,
    /// The reason, at most 500 characters.
    pub reason: &'a str,
}

/// A job to be ordered.
#[derive(Debug, Clone, Copy)]
pub struct NewJob<'a> {
    /// The action, in one word.
    pub action: &'a str,
    /// The messages, as JSON.
    pub filter: &'a str,
    /// Most messages a second.
    pub per_second: u32,
    /// The messages that the plan has counted.
    pub messages: u64,
}

/// Orders a job and records it, in one transaction and round trip; returns its number. The first batch is due in a
/// second: by then all relays have read that there is a new job, and try destinations again that have taken nothing.
pub async fn order(conn: &mut MySqlConnection, job: &NewJob<'_>, actor: &Actor<'_>) -> Result<u64, sqlx::Error> {
    let text = sql!(
        "BEGIN; INSERT INTO outbox_jobs (action, filter, per_second, created_at, next_at)
            VALUES ({action}, {filter}, {per_second}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 SECOND);
        {record}; COMMIT",
        action = Utf8(job.action),
        filter = Utf8(job.filter),
        per_second = job.per_second,
        record = record(actor, job.action, job.filter, &sql!("LAST_INSERT_ID()"), Some(job.messages)),
    );
    let replies = text.run(conn).await?;
    Ok(replies.get(1).map_or(0, |reply| reply.done.last_insert_id()))
}

/// Ends a job that has not ended, after the batch that may run, and records it. False: it has ended, or there is none.
/// Locks its row.
pub async fn stop(conn: &mut MySqlConnection, job_id: u64, actor: &Actor<'_>) -> Result<bool, sqlx::Error> {
    let text = sql!(
        "UPDATE outbox_jobs SET ended_at = UTC_TIMESTAMP(6), is_stopped = 1 WHERE job_id = {job_id} \
         AND ended_at IS NULL",
        job_id,
    );
    sql!("BEGIN").run(conn).await?;
    let is_stopped = text.run(conn).await?.first().is_some_and(|reply| reply.done.rows_affected() == 1);
    if is_stopped {
        record(actor, "stop", "", &sql!("{job_id}", job_id), None).run(conn).await?;
    }
    sql!("COMMIT").run(conn).await?;
    Ok(is_stopped)
}

/// The statement that records an action. The view takes only the login and the time of the session.
pub(in crate::store) fn record(
    actor: &Actor<'_>,
    action: &str,
    target: &str,
    job_id: &Text,
    messages: Option<u64>,
) -> Text {
    sql!(
        "INSERT INTO outbox_audit_entries (at, actor, account, via, action, target, reason, job_id, messages)
            VALUES (UTC_TIMESTAMP(6), {actor}, USER(), {via}, {action}, {target}, {reason}, {job_id}, {messages})",
        actor = Utf8(actor.name),
        via = Utf8(actor.via),
        action = Utf8(action),
        target = Utf8(target),
        reason = Utf8(actor.reason),
        job_id = *job_id,
        messages,
    )
}

/// A job that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueJob {
    /// Its number.
    pub job_id: u64,
    /// The action, in one word.
    pub action: String,
    /// The messages, as JSON.
    pub filter: String,
    /// Most messages a second.
    pub per_second: u32,
    /// The time of the order. Messages that died later are none of its messages.
    pub created_at: i64,
    /// The lane and id of the last message that it has looked at.
    pub last: (u16, u64),
    /// The fence of its last batch.
    pub token: u64,
}

/// The jobs whose next batch is due, at most a hundred, the longest due first. Of the replays only the first may run:
/// two at a time might both put one message back. Index `outbox_jobs_open`, no lock.
pub async fn due(conn: &mut MySqlConnection) -> Result<Vec<DueJob>, sqlx::Error> {
    let sql = "SELECT job_id, action, filter, per_second, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at), \
               last_lane, last_id, \
               token FROM outbox_jobs FORCE INDEX (outbox_jobs_open) \
               WHERE ended_at IS NULL AND next_at <= UTC_TIMESTAMP(6) AND (action <> 'replay' OR job_id = \
               (SELECT MIN(r.job_id) FROM outbox_jobs r WHERE r.ended_at IS NULL AND r.action = 'replay')) \
               ORDER BY next_at LIMIT 100";
    let rows = sqlx::query(sql).fetch_all(conn).await?;
    let due = |row: &MySqlRow| {
        Ok(DueJob {
            job_id: row.try_get(0)?,
            action: row.try_get(1)?,
            filter: row.try_get(2)?,
            per_second: row.try_get(3)?,
            created_at: row.try_get(4)?,
            last: (row.try_get(5)?, row.try_get(6)?),
            token: row.try_get(7)?,
        })
    };
    rows.iter().map(due).collect()
}

/// Makes a job due again in ten seconds. The time is longer than a call. Each batch begins with this call: if the batch
/// fails, for example at a locked row, the other jobs go first.
pub async fn put_off(conn: &mut MySqlConnection, job: &DueJob) -> Result<(), sqlx::Error> {
    let sql = "UPDATE outbox_jobs SET next_at = UTC_TIMESTAMP(6) + INTERVAL 10 SECOND WHERE job_id = ? AND token = ? \
               AND ended_at IS NULL";
    sqlx::query(sql).bind(job.job_id).bind(job.token).execute(conn).await.map(drop)
}

/// Some messages that a job changes.
#[derive(Debug, Clone, Copy)]
pub struct JobBatch<'a> {
    /// The job.
    pub job: &'a DueJob,
    /// The change of the messages.
    pub change: JobChange<'a>,
    /// Their lane; a replay has it with each message.
    pub lane: u16,
    /// The messages.
    pub ids: &'a [u64],
    /// The lane and id of the last message that was looked at.
    pub last: (u16, u64),
    /// Whether no message is behind it.
    pub is_last: bool,
    /// The time until the next batch.
    pub pause: Duration,
    /// The fence of this batch, random.
    pub token: u64,
}

/// Carries out a batch in one round trip. False: another relay was faster, or the job was stopped; nothing is changed
/// then.
///
/// The first statement is a compare-and-set on the job's fence, and each later one joins the job with the new fence. So
/// no two relays carry out one batch, a batch and its end are written together, and a server that rolls back in the
/// middle of the text without an error executes none of the later statements. Locks the job, the head of the lane, then
/// these rows. It waits a second for each row, because claims and promotions of the lane wait for its head.
pub async fn carry_out(conn: &mut MySqlConnection, batch: &JobBatch<'_>) -> Result<bool, sqlx::Error> {
    let replies = text(batch).run(conn).await?;
    Ok(replies.get(2).is_some_and(|reply| reply.done.rows_affected() == 1))
}

pub(in crate::store) fn text(batch: &JobBatch<'_>) -> Text {
    let (job_id, (table, condition)) = (batch.job.job_id, batch.change.rows());
    let fenced = sql!("j.job_id = {job_id} AND j.token = {token}", job_id, token = batch.token);
    let rows = sql!(
        "outbox_jobs j STRAIGHT_JOIN {ids}
            STRAIGHT_JOIN {table} d FORCE INDEX (PRIMARY) ON d.lane = {lane} AND d.id = l.id{condition}",
        ids = listed(batch.ids),
        table,
        lane = batch.lane,
        condition,
    );
    sql!(
        "SET SESSION innodb_lock_wait_timeout = 1; BEGIN; UPDATE outbox_jobs
            SET token = {token}, last_lane = {last_lane}, last_id = {last_id},
            next_at = UTC_TIMESTAMP(6) + INTERVAL {pause} MICROSECOND, ended_at = IF({is_last}, UTC_TIMESTAMP(6), NULL)
            WHERE job_id = {job_id} AND token = {seen} AND ended_at IS NULL{change};
        UPDATE outbox_jobs j SET j.done = j.done + GREATEST(ROW_COUNT(), 0) WHERE {fenced}; COMMIT",
        token = batch.token,
        last_lane = batch.last.0,
        last_id = batch.last.1,
        pause = micros(batch.pause),
        is_last = u16::from(batch.is_last),
        job_id,
        seen = batch.job.token,
        change = if batch.ids.is_empty() { sql!("; DO 0") } else { change(batch, &rows, &fenced) },
        fenced,
    )
}

/// The statements that change the messages. The last one affects one row for each.
fn change(batch: &JobBatch<'_>, rows: &Text, fenced: &Text) -> Text {
    // Changes nothing, and locks the rows of dead messages: the purge and other jobs delete them without the head.
    let lock = || sql!("; UPDATE {rows} SET d.holds_key = d.holds_key WHERE {fenced}", rows = *rows, fenced = *fenced);
    // As in a promotion, the version makes looks void that lack the rows, and `low` makes looks include them.
    let head = |lanes: BTreeSet<u64>| {
        sql!(
            "; UPDATE outbox_jobs j STRAIGHT_JOIN outbox_head h ON h.lane IN ({lanes})
                SET h.version = {raised}, h.claimer = 0, h.low = LEAST(h.low, {smallest}) WHERE {fenced}",
            lanes = Ids(&lanes),
            raised = tail::RAISED,
            smallest = batch.ids.iter().copied().min().unwrap_or(0),
            fenced = *fenced,
        )
    };
    match batch.change {
        JobChange::Hurry | JobChange::Retry => sql!(
            "{head}{lock};
            INSERT IGNORE INTO outbox_pending (lane, id, key_hash, bytes, attempts)
                SELECT d.lane, d.id, d.key_hash, d.bytes, {attempts} FROM {rows} WHERE {fenced};
            DELETE d FROM {rows}
                STRAIGHT_JOIN outbox_pending p FORCE INDEX (PRIMARY) ON p.lane = d.lane AND p.id = d.id WHERE {fenced}",
            head = head([batch.lane.into()].into()),
            lock = if batch.change == JobChange::Retry { lock() } else { Text::default() },
            attempts = if batch.change == JobChange::Hurry { "d.attempts" } else { "0" },
            rows = *rows,
            fenced = *fenced,
        ),
        JobChange::Release => {
            sql!("; UPDATE {rows} SET d.holds_key = 0 WHERE {fenced}", rows = *rows, fenced = *fenced)
        }
        JobChange::Discard => sql!(
            "{lock};
            DELETE m, r, a FROM {rows} LEFT JOIN outbox_messages m FORCE INDEX (PRIMARY) ON m.id = d.id
                LEFT JOIN outbox_replays r FORCE INDEX (PRIMARY) ON r.id = d.id
                LEFT JOIN outbox_attempts a FORCE INDEX (PRIMARY) ON a.id = d.id WHERE {fenced};
            DELETE d FROM {rows} WHERE {fenced}",
            lock = lock(),
            rows = *rows,
            fenced = *fenced,
        ),
        JobChange::DiscardDelayed => sql!("; DELETE d FROM {rows} WHERE {fenced}", rows = *rows, fenced = *fenced),
        JobChange::Replay(messages, destination) => sql!(
            "{head};
            INSERT INTO outbox_replays (id, job_id, destination)
                SELECT v.id, j.job_id, {destination} FROM outbox_jobs j STRAIGHT_JOIN {values}
                LEFT JOIN outbox_pending p ON p.lane = v.lane AND p.id = v.id WHERE {fenced} AND p.id IS NULL
                ON DUPLICATE KEY UPDATE job_id = VALUES(job_id), destination = VALUES(destination);
            INSERT IGNORE INTO outbox_pending (lane, id, key_hash, bytes)
                SELECT v.lane, v.id, v.key_hash, v.bytes FROM outbox_jobs j STRAIGHT_JOIN {values} WHERE {fenced}",
            head = head(messages.iter().map(|it| it.lane.into()).collect()),
            values = values(messages),
            destination = destination.map_or_else(|| sql!("NULL"), |it| sql!("{it}", it = Utf8(it))),
            fenced = *fenced,
        ),
    }
}

/// A job, for operators. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// Its number.
    pub job_id: u64,
    /// The action, in one word.
    pub action: String,
    /// The messages, as JSON.
    pub filter: String,
    /// The time of the order.
    pub created_at: i64,
    /// The time of its end.
    pub ended_at: Option<i64>,
    /// Whether an operator stopped it.
    pub is_stopped: bool,
    /// Whether relays refused it, because the audit lacks its order.
    pub is_refused: bool,
    /// Messages changed so far.
    pub done: u64,
    /// The number of messages in its plan.
    pub planned: Option<u64>,
    /// The name of the operator.
    pub actor: String,
    /// The reason.
    pub reason: String,
}

/// The newest jobs, at most `limit`. Primary key; reads as many rows of the audit as were written since the oldest of
/// them.
pub async fn list(conn: &mut MySqlConnection, limit: u32) -> Result<Vec<JobRow>, sqlx::Error> {
    let sql = "SELECT j.job_id, j.action, j.filter, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', j.created_at), \
               TIMESTAMPDIFF(MICROSECOND, '1970-01-01', j.ended_at), j.is_stopped = 1, j.done, a.messages, \
               COALESCE(a.actor, ''), COALESCE(a.reason, ''), j.is_stopped = 2 \
               FROM (SELECT * FROM outbox_jobs ORDER BY job_id DESC LIMIT ?) j \
               LEFT JOIN outbox_audit a ON a.job_id = j.job_id AND a.action = j.action ORDER BY j.job_id DESC";
    let rows = sqlx::query(sql).bind(limit).fetch_all(conn).await?;
    let job = |row: &MySqlRow| {
        Ok(JobRow {
            job_id: row.try_get(0)?,
            action: row.try_get(1)?,
            filter: row.try_get(2)?,
            created_at: row.try_get(3)?,
            ended_at: row.try_get(4)?,
            is_stopped: row.try_get(5)?,
            done: row.try_get(6)?,
            planned: row.try_get(7)?,
            actor: row.try_get(8)?,
            reason: row.try_get(9)?,
            is_refused: row.try_get(10)?,
        })
    };
    rows.iter().map(job).collect()
}

/// A row of the audit. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Its number.
    pub audit_id: u64,
    /// The time of the action.
    pub at: i64,
    /// The name that the program gave.
    pub actor: String,
    /// The database's name for the login, with its host.
    pub account: String,
    /// The program.
    pub via: String,
    /// The action, in one word.
    pub action: String,
    /// The filter of a job as JSON, or the lane, sink or destination of a pause.
    pub target: String,
    /// The reason.
    pub reason: String,
    /// The job.
    pub job_id: Option<u64>,
    /// The number of messages in its plan.
    pub messages: Option<u64>,
}

/// The newest rows of the audit below a number, at most `limit`. Primary key, no lock.
pub async fn audit(conn: &mut MySqlConnection, below: u64, limit: u32) -> Result<Vec<AuditRow>, sqlx::Error> {
    let sql = "SELECT audit_id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at), actor, account, via, action, target, \
               reason, job_id, \
               messages FROM outbox_audit WHERE audit_id < ? ORDER BY audit_id DESC LIMIT ?";
    let rows = sqlx::query(sql).bind(below).bind(limit).fetch_all(conn).await?;
    let row = |row: &MySqlRow| {
        Ok(AuditRow {
            audit_id: row.try_get(0)?,
            at: row.try_get(1)?,
            actor: row.try_get(2)?,
            account: row.try_get(3)?,
            via: row.try_get(4)?,
            action: row.try_get(5)?,
            target: row.try_get(6)?,
            reason: row.try_get(7)?,
            job_id: row.try_get(8)?,
            messages: row.try_get(9)?,
        })
    };
    rows.iter().map(row).collect()
}
