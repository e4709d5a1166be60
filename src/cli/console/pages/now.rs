//! The first page: the way of messages, and where it stands still.

use outbox_relay::operate::shown::span;
use serde_json::Map;

use super::{
    ApiRefusal, Block, Cell, Step, Table, Value, View, Visit,
    lists::{INSTANCES, paused},
    number, order_of, rate, request, rows, table, text, tone,
    unsent::groups,
};

pub(super) async fn view(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Now".to_owned(), menu: "/", is_live: true, ..View::default() };
    let requests = [
        request("status", &[]),
        request("delayed/list", &[("group_by", "error")]),
        request("dead/list", &[("group_by", "error")]),
        request("controls", &[]),
        request("instances", &[]),
        request("messages/list", &[("limit", "1"), ("budget", "1")]),
        request("inbox/dead", &[]),
    ];
    let [status, delayed, dead, controls, instances, newest, given_up] = visit.answers(&mut view, requests).await?;
    if status.is_null() {
        return Ok(view);
    }
    view.verdict = Some(text(&status, "verdict").to_owned());
    view.tone = tone_of(&status);
    let rates = visit.api.rates.look(number(&newest, "newest"), unsent(&status));
    let mut steps = flow(&status, &instances, rates);
    for step in steps.iter_mut().filter(|step| step.is_sink) {
        if rows(&controls).any(|pause| text(pause, "kind") == "sink" && text(pause, "name") == step.name) {
            step.count = Cell { href: step.count.href.take(), ..Cell::text("paused").toned("wait") };
        }
    }
    let count = rows(&given_up).count();
    let at_most = if count >= GIVEN_UP { "+" } else { "" };
    let cell = Cell::text(&format!("{count}{at_most}")).toned(if count == 0 { "" } else { "bad" });
    let cell = Cell { href: (count > 0).then(|| "/consumers".to_owned()), ..cell };
    steps.push(Step { is_beside: true, ..Step::new("Given up by consumers", cell, String::new()) });
    view.blocks.push(Block::Flow(steps));
    for (title, path, groups_of) in
        [("Why messages are dead", "/dead", &dead), ("Why messages wait", "/delayed", &delayed)]
    {
        if rows(groups_of.get("rows").unwrap_or(&Value::Null)).next().is_some() {
            view.blocks.push(Block::Table(groups(title, path, groups_of)));
        }
    }
    if rows(&controls).next().is_some() {
        view.blocks.push(Block::Table(Table { title: "Paused".to_owned(), ..paused(&controls) }));
    }
    let lanes = status.get("lanes").unwrap_or(&Value::Null);
    let columns = ["lane", "state", "verdict", "pending", "delayed", "dead"];
    let mut of_lanes = table(lanes, &columns);
    of_lanes.columns.push("order".to_owned());
    for (row, lane) in of_lanes.rows.iter_mut().zip(rows(lanes)) {
        let number = number(lane, "lane");
        row.push(match text(lane, "state") {
            "paused" => order_of("resume", "Resume…", "lane", number).into(),
            _ => order_of("pause", "Pause…", "lane", number).into(),
        });
    }
    let empty = "No lane has had a message. A service sends the first one with Outbox::enqueue.".to_owned();
    view.blocks.push(Block::Table(Table { title: "Lanes".to_owned(), empty, ..of_lanes }));
    let empty = "None runs: start one with relay run.".to_owned();
    let running = Table { title: "Relays and workers".to_owned(), empty, ..table(&instances, &INSTANCES) };
    view.blocks.push(Block::Table(running));
    Ok(view)
}

/// Most messages that consumers have given up which an answer has.
const GIVEN_UP: usize = 100;

/// `bad`: someone has to do something; `wait`: something waits for a time or a decision.
pub(super) fn tone_of(status: &Value) -> &'static str {
    let lanes = rows(status.get("lanes").unwrap_or(&Value::Null));
    let tones: Vec<_> = lanes.map(|lane| tone(text(lane, "state"))).collect();
    let is_bad = number(status, "dead") > 0 || sinks_down(status) > 0 || tones.contains(&"bad");
    let no_relay = number(status, "relays") == 0 && unsent(status) > 0;
    if is_bad || no_relay {
        return "bad";
    }
    if tones.contains(&"wait") { "wait" } else { "good" }
}

pub(super) fn unsent(status: &Value) -> u64 {
    ["pending", "leased", "delayed", "dead"].map(|name| number(status, name)).iter().sum()
}

fn sinks_down(status: &Value) -> usize {
    status.get("sinks_down").and_then(Value::as_object).map_or(0, Map::len)
}

fn flow(status: &Value, instances: &Value, rates: Option<(u64, u64)>) -> Vec<Step> {
    let lag = |name: &str| match status.pointer(&format!("/lag_seconds_by_cause/{name}")).and_then(Value::as_f64) {
        Some(seconds) if seconds >= 1.0 => format!("the oldest for {}", since(seconds)),
        _ => String::new(),
    };
    let count = |name: &str, path: &str, tone: &'static str| {
        let count = number(status, name);
        let cell = Cell::of(&Value::from(count)).toned(if count == 0 { "" } else { tone });
        Cell { href: (count > 0).then(|| path.to_owned()), ..cell }
    };
    let is_due_late = !lag("due").is_empty();
    let mut steps = Vec::new();
    let unknown = || Cell::text("…");
    steps.push(Step::new("Enqueued", rates.map_or_else(unknown, |(enqueued, _)| rate(enqueued)), String::new()));
    steps.push(Step::new("Due", count("pending", "/pending", if is_due_late { "wait" } else { "" }), lag("due")));
    steps.push(Step::new("Claimed", count("leased", "/relays", ""), String::new()));
    if number(status, "relays") == 0 {
        let none = Cell { href: Some("/relays".to_owned()), ..Cell::text("none").toned("bad") };
        steps.push(Step::new("Relays that run", none, String::new()));
    }
    let down = status.get("sinks_down").and_then(Value::as_object);
    for name in sinks(instances) {
        let is_down = down.is_some_and(|down| down.contains_key(&name));
        let cell = if is_down { Cell::text("down").toned("bad") } else { Cell::text("up").toned("good") };
        let note = if is_down { "takes nothing".to_owned() } else { String::new() };
        let count = Cell { href: Some("/destinations".to_owned()), ..cell };
        steps.push(Step { is_sink: true, ..Step::new(&name, count, note) });
    }
    steps.push(Step::new("Sent", rates.map_or_else(unknown, |(_, sent)| rate(sent)), String::new()));
    steps.push(Step { is_beside: true, ..Step::new("Delayed", count("delayed", "/delayed", "wait"), lag("parked")) });
    let keys = Step::new("Keys with messages behind", count("blocked_keys", "/keys", "wait"), String::new());
    steps.push(Step { is_beside: true, ..keys });
    steps.push(Step { is_beside: true, ..Step::new("Dead", count("dead", "/dead", "bad"), String::new()) });
    steps
}

/// A number of seconds, as people say it.
#[expect(clippy::cast_possible_truncation, reason = "a lag of whole microseconds")]
pub(super) fn since(seconds: f64) -> String {
    span((seconds * 1e6) as i64)
}

/// The sinks of the relays that run.
pub(super) fn sinks(instances: &Value) -> Vec<String> {
    let runs = |instance: &&Value| text(instance, "state") != "gone";
    let of_one = |instance: &Value| instance.get("sinks").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut names: Vec<_> = rows(instances).filter(runs).flat_map(of_one).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    names
}
