//! Relays, jobs, pauses and the audit.

use super::{
    ApiRefusal, Block, Cell, Link, Table, Value, View, Visit, href, number, order_of, orders, request, rows, table,
    text,
};

pub(super) const INSTANCES: [&str; 8] =
    ["instance", "role", "state", "in_flight", "lanes", "tail", "version", "seen_at"];

pub(super) async fn relays(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Relays and workers".to_owned(), menu: "/relays", is_live: true, ..View::default() };
    let [instances] = visit.answers(&mut view, [request("instances", &[])]).await?;
    let mut table = table(&instances, &INSTANCES);
    table.columns.extend(["sinks", "may it be stopped?", "order"].map(str::to_owned));
    for (row, instance) in table.rows.iter_mut().zip(rows(&instances)) {
        let sinks = instance.get("sinks").and_then(Value::as_object);
        let refused = sinks.into_iter().flatten().filter_map(|(sink, why)| Some(format!("{sink}: {}", why.as_str()?)));
        let refused: Vec<_> = refused.collect();
        row.push(match (refused.is_empty(), sinks.is_none_or(serde_json::Map::is_empty)) {
            (true, true) => Cell::default(),
            (true, false) => Cell::text("all take messages").toned("good"),
            (false, _) => Cell::text(&refused.join("; ")).toned("bad"),
        });
        let name = text(instance, "instance");
        let in_flight = number(instance, "in_flight");
        let (answer, order) = match text(instance, "state") {
            "live" => {
                let answer = if rows(&instances).any(|other| takes_over(other, instance)) {
                    Cell::text("yes: another takes over")
                } else {
                    Cell::text("no other has all its lanes and sinks: messages would wait").toned("wait")
                };
                (answer, Some(order_of("pause", "Drain…", "instance", name)))
            }
            "drained" if in_flight == 0 => (
                Cell::text("yes, it does nothing").toned("good"),
                Some(order_of("resume", "Resume…", "instance", name)),
            ),
            "drained" | "draining" => {
                let text = "not yet, it finishes what is in flight";
                (Cell::text(text).toned("wait"), Some(order_of("resume", "Resume…", "instance", name)))
            }
            _ => (Cell::text("its heartbeats have stopped"), None),
        };
        row.push(answer);
        row.push(order.map_or_else(Cell::default, Cell::from));
    }
    let empty = "None has written a heartbeat for a day. Start one with relay run.".to_owned();
    view.blocks.push(Block::Table(Table { empty, ..table }));
    Ok(view)
}

/// Whether another process does all that this one does.
fn takes_over(other: &Value, instance: &Value) -> bool {
    let lanes = |of: &Value| rows(of.get("lanes").unwrap_or(&Value::Null)).cloned().collect::<Vec<_>>();
    // Without a list it serves all lanes.
    let served = lanes(other);
    let needed = lanes(instance);
    let has_lanes = served.is_empty() || !needed.is_empty() && needed.iter().all(|lane| served.contains(lane));
    let sinks = |of: &Value| of.get("sinks").and_then(Value::as_object).cloned().unwrap_or_default();
    let their_sinks = sinks(other);
    text(other, "state") == "live"
        && text(other, "instance") != text(instance, "instance")
        && text(other, "role") == text(instance, "role")
        && has_lanes
        && sinks(instance).keys().all(|sink| their_sinks.contains_key(sink))
}

pub(super) async fn jobs(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Jobs".to_owned(), menu: "/jobs", is_live: true, ..View::default() };
    let [jobs] = visit.answers(&mut view, [request("jobs", &[])]).await?;
    if let Ok(ordered) = visit.query.get("ordered").parse::<u64>() {
        let job = rows(&jobs).find(|job| number(job, "job") == ordered);
        view.verdict = job.map(|job| match text(job, "state") {
            "open" => format!("Job {ordered} is ordered. Relays carry it out."),
            "done" => {
                format!("Job {ordered} is done. Its messages tell what came of it: relays try them, or will soon.")
            }
            state => format!("Job {ordered} is {state}."),
        });
    }
    let columns = ["job", "action", "filter", "state", "done", "planned", "reason", "actor", "ordered_at", "ended_at"];
    let mut table = table(&jobs, &columns);
    table.columns.push("order".to_owned());
    for (row, job) in table.rows.iter_mut().zip(rows(&jobs)) {
        let is_open = job.get("ended_at").is_none_or(Value::is_null);
        let stop = order_of("jobs/stop", "Stop…", "job", number(job, "job"));
        let filter: Value = serde_json::from_str(text(job, "filter")).unwrap_or_default();
        if let (Some(id), Some(cell)) = (filter.get("id").and_then(Value::as_u64), row.get_mut(2)) {
            *cell = Cell::link(&format!("message {id}"), format!("/message/{id}"));
        }
        row.push(if is_open { stop.into() } else { Cell::default() });
    }
    let empty = "Nobody has ordered one. Retries, releases, discards and replays are jobs.".to_owned();
    view.blocks.push(Block::Table(Table { empty, ..table }));
    Ok(view)
}

pub(super) async fn controls(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Pauses".to_owned(), menu: "/controls", is_live: true, ..View::default() };
    let [controls] = visit.answers(&mut view, [request("controls", &[])]).await?;
    view.blocks.push(Block::Table(Table { empty: "Nothing is paused.".to_owned(), ..paused(&controls) }));
    let links = [("Pause a lane", "/"), ("Pause a sink or destination", "/destinations"), ("Drain a relay", "/relays")];
    view.blocks.push(Block::Orders(links.map(|(text, path)| Link::to(text, path)).to_vec()));
    Ok(view)
}

/// The pauses, each with the order that ends it.
pub(super) fn paused(controls: &Value) -> Table {
    let mut table = table(controls, &["kind", "name", "paused_at", "ends_at", "actor", "reason"]);
    table.columns.push("order".to_owned());
    for (row, pause) in table.rows.iter_mut().zip(rows(controls)) {
        row.push(resume(pause).into());
    }
    table
}

/// A link that ends a pause.
pub(super) fn resume(pause: &Value) -> Link {
    let name = pause.get("name").map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
    orders::link("resume", "Resume…", [(text(pause, "kind"), name.unwrap_or_default().as_str())])
}

pub(super) async fn audit(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Audit".to_owned(), menu: "/audit", ..View::default() };
    let below = visit.query.get("below");
    let [audit] = visit.answers(&mut view, [request("audit", &[("below", below)])]).await?;
    let columns = ["entry", "at", "actor", "action", "target", "messages", "job", "reason", "via", "account"];
    let entries: Vec<_> = rows(&audit).collect();
    let last = entries.last().map(|entry| number(entry, "entry").to_string());
    let more = last
        .filter(|_| entries.len() >= 50)
        .map(|last| Link::to("Go on with older entries", href("/audit", [("below", last.as_str())])));
    let empty = "Nobody has given an order.".to_owned();
    view.blocks.push(Block::Table(Table { empty, more, ..table(&audit, &columns) }));
    Ok(view)
}
