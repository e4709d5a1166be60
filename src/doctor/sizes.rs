//! The sizes of tables.

use outbox_core::store::operate::doctor::TableSize;

use super::Finding;

/// A table that should be small: most rows, the reason, and the fix.
type Bound = (&'static str, u64, &'static str, &'static str);

/// Most of these tables have a few rows. Each bound is far above that, and below the size at which its reads take
/// seconds.
const BOUNDS: [Bound; 9] = [
    // A thousand busy lanes have a claim each.
    (
        "outbox_claims",
        10_000,
        "Each relay reads all of them once a second.",
        "Start a relay: it takes over claims whose lease has ended.",
    ),
    (
        "outbox_controls",
        1_000,
        "Each relay reads all of them twice a second.",
        "Resume what need not be paused: relay controls lists them.",
    ),
    (
        "outbox_delayed",
        1_000_000,
        "One relay counts them every 8 s.",
        "Look for what they wait for: relay delayed list.",
    ),
    (
        "outbox_dead",
        100_000,
        "One relay counts them every 8 s.",
        "Look for the cause, then retry or discard them: relay dead list --group-by error.",
    ),
    (
        "outbox_jobs",
        100_000,
        "Ended jobs are deleted after retention.audit.",
        "Let programs order fewer and larger jobs, or shorten retention.audit.",
    ),
    (
        "outbox_audit",
        1_000_000,
        "Its rows are deleted after retention.audit.",
        "Copy old rows to where the audit is kept, and shorten retention.audit.",
    ),
    (
        "outbox_replays",
        1_000_000,
        "They are deleted with their messages alone.",
        "Shorten retention.sent, or replay less.",
    ),
    // A million keys have about 100 MiB. A row is read by its key, so that only backups and memory grow.
    (
        "outbox_key_sequence",
        10_000_000,
        KEYS,
        "Delete keys that never have a message again. Such a key would begin again at 1.",
    ),
    ("inbox_sequence", 10_000_000, KEYS, "Let consumers purge it (InboxPurge)."),
];
const KEYS: &str = "It has a row for each key that ever had a message, and grows for ever.";

/// Judges the sizes, the largest table first.
pub(super) fn judge(sizes: &[TableSize]) -> Vec<Finding> {
    let large = |size: &TableSize| {
        let (_, most, matters, fix) = BOUNDS.iter().find(|(table, ..)| *table == size.table)?;
        let evidence = format!("{}: more than {most} are unusual.", sentence(size));
        (size.rows > *most).then(|| Finding::risk("table_large", evidence).matters(matters).fix(*fix))
    };
    let all: Vec<_> = sizes.iter().map(sentence).collect();
    let note = Finding::note("table_sizes", format!("Tables that this account sees: {}.", all.join(", ")));
    sizes.iter().filter_map(large).chain([note]).collect()
}

/// `outbox_sent has about 12 rows (0.1 MiB)`
fn sentence(size: &TableSize) -> String {
    let tenths = size.bytes.saturating_mul(10) >> 20;
    format!("{} has about {} rows ({}.{} MiB)", size.table, size.rows, tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_large_above_its_own_bound() {
        let size = |table: &str, rows| TableSize { table: table.to_owned(), rows, bytes: 3 << 19 };
        let found = |sizes: &[TableSize]| judge(sizes).iter().map(|it| it.finding).collect::<Vec<_>>();
        for (table, most, ..) in BOUNDS {
            assert_eq!(found(&[size(table, most)]), ["table_sizes"]);
            assert_eq!(found(&[size(table, most + 1)]), ["table_large", "table_sizes"]);
        }
        assert_eq!(found(&[size("outbox_messages", u64::MAX)]), ["table_sizes"]);
        let note = judge(&[size("outbox_head", 1), size("outbox_sent", 2)]).pop().unwrap();
        assert_eq!(
            note.evidence,
            "Tables that this account sees: outbox_head has about 1 rows (1.5 MiB), outbox_sent has about 2 rows (1.5 \
             MiB)."
        );
    }
}
