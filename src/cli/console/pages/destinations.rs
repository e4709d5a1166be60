//! Sinks and destinations: what takes no messages, and what is paused.

use std::collections::BTreeMap;

use super::{
    ApiRefusal, Block, Cell, Field, Filter, Link, Table, Value, View, Visit, lists::resume, now::sinks, number,
    order_of, orders, request, rows, text,
};

/// The state of a sink, or of a destination such as `kafka/orders`.
#[derive(Default)]
struct DestinationState {
    problem: String,
    waiting: u64,
    dead: u64,
    pause: Option<Value>,
}

pub(super) async fn view(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Destinations".to_owned(), menu: "/destinations", is_live: true, ..View::default() };
    let requests = [
        request("status", &[]),
        request("instances", &[]),
        request("controls", &[]),
        request("delayed/list", &[("group_by", "error")]),
        request("dead/list", &[("group_by", "error")]),
    ];
    let [status, instances, controls, delayed, dead] = visit.answers(&mut view, requests).await?;
    let mut known: BTreeMap<String, DestinationState> =
        sinks(&instances).into_iter().map(|it| (it, DestinationState::default())).collect();
    for (sink, refusal) in status.get("sinks_down").and_then(Value::as_object).into_iter().flatten() {
        let problem = refusal.as_str().unwrap_or_default().to_owned();
        known.insert(sink.clone(), DestinationState { problem, ..DestinationState::default() });
    }
    for pause in rows(&controls).filter(|pause| matches!(text(pause, "kind"), "sink" | "destination")) {
        known.entry(text(pause, "name").to_owned()).or_default().pause = Some(pause.clone());
    }
    for (groups, is_dead) in [(&delayed, false), (&dead, true)] {
        for group in rows(groups.get("rows").unwrap_or(&Value::Null)) {
            let Some((reason, name, error)) = named(text(group, "group")) else { continue };
            let is_refused = is_dead || matches!(reason, "parked" | "unroutable");
            let sink = name.split('/').next().unwrap_or_default();
            if !is_refused || !known.contains_key(sink) {
                continue;
            }
            let it = known.entry(name.to_owned()).or_default();
            let count = if is_dead { &mut it.dead } else { &mut it.waiting };
            *count += number(group, "messages");
            if it.problem.is_empty() && !is_dead {
                error.clone_into(&mut it.problem);
            }
        }
    }
    let is_bad = known.values().any(|it| !it.problem.is_empty());
    if status.is_null() {
        return Ok(view);
    }
    view.tone = if is_bad { "bad" } else { "good" };
    let bad = known.iter().filter(|(_, it)| !it.problem.is_empty()).map(|(name, _)| name.as_str()).collect::<Vec<_>>();
    view.verdict = Some(match bad.as_slice() {
        [] if known.is_empty() => "No relay runs that has a sink.".to_owned(),
        [] => "All sinks take messages, and no message waits for its destination.".to_owned(),
        bad => format!("These take nothing: {}.", bad.join(", ")),
    });
    view.blocks.push(Block::Table(table(&known)));
    let destination = visit.field("destination", "Another destination, such as kafka/orders");
    let fields = vec![Field { is_required: true, ..destination }];
    view.blocks.push(Block::Filter(Filter { action: "/order/pause".to_owned(), fields, submit: "Pause…" }));
    view.blocks.push(Block::Text(
        "Tries".to_owned(),
        "A sink or destination that takes nothing is tried with single messages, more rarely each time. Its messages \
         wait without a spent attempt, and others go on. When it takes one, the rest follows by itself."
            .to_owned(),
    ));
    Ok(view)
}

/// The reason, the destination and the rest of a group such as `unroutable: kafka/orders: …`.
fn named(group: &str) -> Option<(&str, &str, &str)> {
    let (reason, error) = group.split_once(": ")?;
    let (name, rest) = error.split_once(": ")?;
    let is_name = name.len() < 300 && !name.contains(char::is_whitespace);
    is_name.then_some((reason, name, rest))
}

fn table(known: &BTreeMap<String, DestinationState>) -> Table {
    let row = |(name, it): (&String, &DestinationState)| {
        let kind = if name.contains('/') { "destination" } else { "sink" };
        let (state, tone) = match (&it.pause, it.problem.is_empty()) {
            (Some(_), _) => ("paused", "wait"),
            (None, true) => ("takes messages", "good"),
            (None, false) => ("takes nothing", "bad"),
        };
        let error = format!("{name}: ");
        let count = |count: u64, path: &str, by: &str| {
            let cell = Cell::of(&Value::from(count));
            let path = super::href(path, [("error", by)]);
            if count == 0 { cell } else { Cell { href: Some(path), ..cell } }
        };
        let order = match &it.pause {
            Some(pause) => resume(pause),
            None => order_of("pause", "Pause…", kind, name),
        };
        let retry = if it.waiting == 0 {
            Cell::default()
        } else {
            orders::link("delayed/retry", "Publish now…", [("error", error.as_str())]).into()
        };
        vec![
            Cell::text(name),
            Cell::text(state).toned(tone),
            count(it.waiting, "/delayed", &error),
            count(it.dead, "/dead", &error),
            Cell::text(&it.problem),
            order.into(),
            retry,
        ]
    };
    let columns = ["sink or destination", "state", "waiting", "dead", "error", "pause", "retry"];
    Table {
        columns: columns.map(str::to_owned).to_vec(),
        rows: known.iter().map(row).collect(),
        empty: "No relay runs that has a sink. Start one with relay run.".to_owned(),
        more: Some(Link::to("Let the doctor ask the brokers", "/doctor")),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn an_error_names_its_destination() {
        for (group, expected) in [
            ("unroutable: kafka/orders: no such topic", Some(("unroutable", "kafka/orders", "no such topic"))),
            ("parked: rabbit: the sink is unavailable", Some(("parked", "rabbit", "the sink is unavailable"))),
            ("behind: ", None),
            ("rejected: a sentence with blanks: x", None),
        ] {
            assert_eq!(named(group), expected, "{group}");
        }
    }
}
