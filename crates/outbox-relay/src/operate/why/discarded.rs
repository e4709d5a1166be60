//! The job that has discarded a message.

use outbox_core::store::operate::jobs::JobRow;

use super::{
    super::{shown::counted, unsent::Filter},
    verdict::Verdict,
};

/// The newest jobs among which that of a message without rows is looked for.
pub(super) const JOBS: u32 = 100;

/// A message that no table has, after a job that discarded it, or may have. A job keeps no list of its messages.
pub(super) fn by(jobs: &[JobRow], id: Option<u64>) -> Option<Verdict> {
    let discards = || jobs.iter().filter(|job| job.action == "discard" && job.done > 0);
    let named = |job: &&JobRow| id.is_some() && serde_json::from_str::<Filter>(&job.filter).is_ok_and(|it| it.id == id);
    if let Some(JobRow { job_id, actor, reason, .. }) = discards().find(named) {
        let why = format!("Job {job_id} has discarded it, for {actor}: {reason}.");
        return Some(Verdict::new("unknown", "discarded", why).with_remedy("relay jobs"));
    }
    let is_of_another =
        |job: &&JobRow| serde_json::from_str::<Filter>(&job.filter).is_ok_and(|it| it.id.is_some() && id.is_some());
    let JobRow { job_id, actor, reason, done, filter, .. } = discards().find(|job| !is_of_another(job))?;
    let why = format!(
        "No message of this outbox has this id. Job {job_id} may have discarded it, with {}, for {actor} ({reason}): \
         {filter}. Or it was never committed, its transaction is still open, or it was purged after its retention.",
        counted(*done, "message", "messages")
    );
    Some(
        Verdict::new("unknown", "not_found", why)
            .with_remedy("relay jobs; relay inbox show with its UUID, if a consumer of this database got it"),
    )
}
