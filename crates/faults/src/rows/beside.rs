//! The alerts beside the rows that are not about alerts.

use super::alerts::LATE;
use crate::row::Row;

const DEAD: &str = "OutboxDeadMessages";
const DISCONNECTED: &str = "OutboxSinkDisconnected";
const FAILURES: &str = "OutboxFailureRatio";
const LAG: &str = "OutboxLagHigh";
const LEASES: &str = "OutboxLeasesLost";
const UNREACHABLE: &str = "OutboxDatabaseUnreachable";

/// The first case of a row. It raises no alerts but those of its fault, and of late messages.
pub(super) fn first_case(mut row: Row) -> Row {
    row.shows = "in its first case, no alert but those of the fault and of late messages";
    row.cases.truncate(1);
    let alerts = [raised(row.id), &LATE].concat();
    row.cases = row.cases.into_iter().map(|case| case.may_raise(&alerts)).collect();
    row
}

/// The alerts that the fault of a row may raise where their times are a tenth: the faults are not shorter.
fn raised(row: &str) -> &'static [&'static str] {
    match row {
        "R2" => &["OutboxRelayAbsent", LAG],
        "R3" | "R5" | "S1" | "T1" => &[LEASES],
        "D1" | "D2" | "D6" | "DR2" | "DR3" => &[UNREACHABLE, LEASES, LAG],
        "DR1" => &["OutboxRelayAbsent", UNREACHABLE, LAG],
        "K1" | "A1" => &[DISCONNECTED, FAILURES, LAG],
        // Their outages are longer than the minute after which a lane is stalled.
        "A2" | "B1" => &[DISCONNECTED, FAILURES, LAG, "OutboxStalled"],
        "K2" | "A3" | "A4" => &["OutboxDestinationRefuses", DEAD, FAILURES],
        "Q1" => &[LAG],
        "Q2" => &[DEAD, FAILURES, LAG],
        "O1" => &["OutboxDestinationRefuses", DEAD, FAILURES, LAG],
        // A loop waits for 8 s after a failure, and a tenth of its limit is 12 s: two failures in a row raise its
        // alert.
        "N1" => &[UNREACHABLE, DISCONNECTED, LEASES, FAILURES, LAG, "OutboxLoopStuck"],
        _ => &[],
    }
}
