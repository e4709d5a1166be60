//! The first page of several outboxes.

use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::join_all;

use super::{Api, Arc, Block, Caller, Cell, Table, Value, View, counted, now, number, rate, request, text};

/// The time that an outbox has to answer.
const PATIENCE: Duration = Duration::from_millis(900);

/// Makes the page. An outbox that does not answer keeps no other out.
pub(in crate::cli::console) async fn fleet(apis: &[Arc<Api>], caller: &Caller) -> View {
    let mut looks = join_all(apis.iter().map(|api| look(api, caller))).await;
    // The sort is stable: those of equal trouble are ordered by name.
    looks.sort_by_key(|(trouble, _)| *trouble);
    let of = |which: std::ops::RangeInclusive<u8>| {
        looks.iter().filter(|(trouble, _)| which.contains(trouble)).count() as u64
    };
    let bad = of(0..=1);
    let waiting = of(2..=2);
    let verdict = match (bad, waiting) {
        (0, 0) => "All outboxes send.".to_owned(),
        (0, waiting) => format!("In {} something waits or is paused.", counted(waiting, "outbox", "outboxes")),
        (bad, _) => format!("{} attention.", counted(bad, "outbox needs", "outboxes need")),
    };
    let columns = ["outbox", "verdict", "oldest", "enqueued", "sent", "unsent", "dead", "relays"];
    let table = Table {
        columns: columns.map(str::to_owned).to_vec(),
        rows: looks.into_iter().map(|(_, row)| row).collect(),
        ..Table::default()
    };
    View {
        title: "Outboxes".to_owned(),
        verdict: Some(verdict),
        tone: match (bad, waiting) {
            (0, 0) => "good",
            (0, _) => "wait",
            _ => "bad",
        },
        blocks: vec![Block::Table(table)],
        is_live: true,
        ..View::default()
    }
}

/// Returns how bad it is, the worst being 0, and the row.
async fn look(api: &Api, caller: &Caller) -> (u8, Vec<Cell>) {
    let requests = [request("status", &[]), request("messages/list", &[("limit", "1"), ("budget", "1")])];
    let asked = api.ask_within(caller, &requests, false, PATIENCE).await;
    let problem = match asked.and_then(|answers| answers.into_iter().collect::<Result<Vec<_>, _>>()) {
        Ok(answers) => return row(api, &answers),
        Err((StatusCode::GATEWAY_TIMEOUT, _)) => "it did not answer within a second".to_owned(),
        Err((_, problem)) => problem,
    };
    let mut row = vec![name(api).toned("bad"), Cell::text(&problem).toned("bad")];
    row.resize_with(8, Cell::default);
    (0, row)
}

fn row(api: &Api, answers: &[Value]) -> (u8, Vec<Cell>) {
    let [status, newest] = answers else { return (0, vec![name(api)]) };
    let tone = now::tone_of(status);
    let unsent = now::unsent(status);
    let rates = api.rates.look(number(newest, "newest"), unsent);
    let lags = status.get("lag_seconds_by_cause").and_then(Value::as_object);
    let unplanned = lags.into_iter().flatten().filter(|(cause, _)| *cause != "scheduled");
    let seconds = unplanned.filter_map(|(_, lag)| lag.as_f64()).fold(0.0, f64::max);
    let cells = vec![
        name(api).toned(tone),
        Cell::text(text(status, "verdict")),
        Cell::text(&now::since(seconds)).toned("number"),
        rates.map_or_else(Cell::default, |(enqueued, _)| rate(enqueued)),
        rates.map_or_else(Cell::default, |(_, sent)| rate(sent)),
        Cell::of(&Value::from(unsent)),
        Cell::of(&Value::from(number(status, "dead"))),
        Cell::of(&Value::from(number(status, "relays"))),
    ];
    let trouble = ["bad", "wait"].iter().position(|it| *it == tone).unwrap_or(2);
    (u8::try_from(trouble).unwrap_or(2) + 1, cells)
}

fn name(api: &Api) -> Cell {
    Cell::link(&api.name, format!("/o/{}/", api.name))
}
