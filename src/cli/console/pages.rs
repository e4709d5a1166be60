//! The pages: which commands each one asks, and how it shows their answers.

use axum::http::StatusCode;
use serde_json::Value;

use super::{
    ApiRefusal, Request, Visit, orders,
    view::{Block, Cell, Event, Field, Filter, Link, Step, Table, View, command, href},
};

/// The menu: path and name.
pub(super) const MENU: &[(&str, &str)] = &[
    ("/", "Now"),
    ("/messages", "Messages"),
    ("/keys", "Keys"),
    ("/dead", "Dead"),
    ("/delayed", "Delayed"),
    ("/replay", "Replay"),
    ("/jobs", "Jobs"),
    ("/controls", "Pauses"),
    ("/relays", "Relays"),
    ("/consumers", "Consumers"),
    ("/audit", "Audit"),
];

/// Makes the page at a path.
///
/// # Errors
///
/// If there is none, or its commands are refused.
pub(super) async fn view(visit: &Visit<'_>, path: &str) -> Result<View, ApiRefusal> {
    match path {
        "/" => now(visit).await,
        "/messages" => messages(visit).await,
        "/keys" => keys(visit).await,
        "/key" => key(visit).await,
        "/dead" => unsent(visit, "dead", "Dead messages", "/dead").await,
        "/delayed" => unsent(visit, "delayed", "Delayed messages", "/delayed").await,
        "/pending" => unsent(visit, "pending", "Pending messages", "/").await,
        "/replay" => Ok(replay(visit)),
        "/jobs" => jobs(visit).await,
        "/controls" => controls(visit).await,
        "/relays" => relays(visit).await,
        "/consumers" => consumers(visit).await,
        "/audit" => audit(visit).await,
        _ if path.starts_with("/order/") => orders::view(visit, path).await,
        _ => match path.strip_prefix("/message/") {
            Some(id) if !id.is_empty() => message(visit, id).await,
            _ => Err((StatusCode::NOT_FOUND, format!("there is no page {path}"))),
        },
    }
}

fn request(path: &str, parameters: &[(&str, &str)]) -> Request {
    let given = parameters.iter().filter(|(_, value)| !value.is_empty());
    let parameters = given.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Request { path: path.to_owned(), parameters }
}

/// The parameters of these names that the address has.
fn from_address<'a>(visit: &'a Visit<'_>, names: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    names.iter().map(|name| (*name, visit.query.get(name))).collect()
}

impl Visit<'_> {
    /// Asks commands on one connection, and adds them and their problems to the page. An answer that failed is null.
    async fn answers<const N: usize>(
        &self,
        view: &mut View,
        requests: [Request; N],
    ) -> Result<[Value; N], ApiRefusal> {
        view.commands.extend(requests.iter().map(command));
        let answers = self.api.ask(&self.caller, &requests, false).await?;
        let mut values = [const { Value::Null }; N];
        for (value, answer) in values.iter_mut().zip(answers) {
            match answer {
                Ok(answer) => *value = answer,
                Err((_, problem)) => view.blocks.push(Block::Problem(problem)),
            }
        }
        Ok(values)
    }
}

/// These columns of a list of objects. Columns without any value are left out.
pub(super) fn table(list: &Value, columns: &[&str]) -> Table {
    let rows: Vec<&Value> = list.as_array().into_iter().flatten().collect();
    let has = |column: &&&str| rows.is_empty() || rows.iter().any(|row| !row.get(column).is_none_or(Value::is_null));
    let columns: Vec<&str> = columns.iter().filter(has).copied().collect();
    let cell = |row: &Value, column: &str| {
        let value = row.get(column).unwrap_or(&Value::Null);
        let cell = Cell::of(value);
        match (column, value) {
            ("id" | "example", Value::Number(id)) => Cell { href: Some(format!("/message/{id}")), ..Cell::text(&id.to_string()) },
            ("message_id", Value::String(id)) => Cell { href: Some(format!("/message/{id}")), ..cell },
            ("state", Value::String(state)) => cell.toned(tone(state)),
            _ => cell,
        }
    };
    Table {
        rows: rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect(),
        columns: columns.iter().map(|column| column.replace('_', " ")).collect(),
        empty: "There is none.".to_owned(),
        ..Table::default()
    }
}

fn tone(state: &str) -> &'static str {
    match state {
        "sent" | "live" | "busy" | "idle" | "claimed" | "first" => "good",
        "dead" | "stuck" | "gone" | "lost" | "unserved" | "unknown" => "bad",
        "delayed" | "waiting" | "paused" | "draining" | "drained" => "wait",
        _ => "",
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

async fn now(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Now".to_owned(), menu: "/", ..View::default() };
    let requests = [
        request("status", &[]),
        request("delayed/list", &[("group_by", "reason")]),
        request("dead/list", &[("group_by", "error")]),
        request("controls", &[]),
        request("instances", &[]),
    ];
    let [status, delayed, dead, controls, instances] = visit.answers(&mut view, requests).await?;
    if status.is_null() {
        return Ok(view);
    }
    view.verdict = Some(text(&status, "verdict").to_owned());
    let lanes = status.get("lanes").unwrap_or(&Value::Null);
    let states: Vec<&str> = lanes.as_array().into_iter().flatten().map(|lane| text(lane, "state")).collect();
    let is_bad = number(&status, "dead") > 0 || states.iter().any(|state| tone(state) == "bad");
    let waits = states.iter().any(|state| tone(state) == "wait");
    view.tone = if is_bad { "bad" } else if waits { "wait" } else { "good" };
    let lag = |name: &str| status.pointer(&format!("/lag_seconds_by_cause/{name}")).and_then(Value::as_f64);
    let oldest = |name: &str| match lag(name) {
        Some(seconds) if seconds >= 1.0 => format!("the oldest for {seconds:.0} s"),
        _ => String::new(),
    };
    let count = |name: &str, href: &str, bad: &'static str| {
        let count = number(&status, name);
        let cell = Cell::of(&Value::from(count)).toned(if count == 0 { "" } else { bad });
        Cell { href: (count > 0).then(|| href.to_owned()), ..cell }
    };
    let down = status.get("sinks_down").and_then(Value::as_object).map_or(0, serde_json::Map::len);
    let sinks = if down == 0 { Cell::text("up").toned("good") } else { Cell::text(&format!("{down} down")).toned("bad") };
    view.blocks.push(Block::Flow(vec![
        Step { name: "Due", count: count("pending", "/pending", "wait"), note: oldest("due"), is_beside: false },
        Step { name: "Claimed", count: count("leased", "/relays", "good"), note: String::new(), is_beside: false },
        Step { name: "Sinks", count: Cell { href: Some("/relays".to_owned()), ..sinks }, note: String::new(), is_beside: false },
        Step { name: "Delayed", count: count("delayed", "/delayed", "wait"), note: oldest("parked"), is_beside: true },
        Step { name: "Blocked keys", count: count("blocked_keys", "/keys", "wait"), note: String::new(), is_beside: true },
        Step { name: "Dead", count: count("dead", "/dead", "bad"), note: String::new(), is_beside: true },
    ]));
    for (sink, refusal) in status.get("sinks_down").and_then(Value::as_object).into_iter().flatten() {
        view.blocks.push(Block::Problem(format!("Sink {sink} {}.", refusal.as_str().unwrap_or_default())));
    }
    if !dead.get("rows").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        view.blocks.push(Block::Table(grouped("Why messages are dead", "/dead", &dead)));
    }
    if !delayed.get("rows").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        view.blocks.push(Block::Table(grouped("Why messages wait", "/delayed", &delayed)));
    }
    let pauses = controls.as_array().map_or(0, Vec::len);
    if pauses > 0 {
        let columns = ["kind", "name", "paused_at", "ends_at", "actor", "reason"];
        view.blocks.push(Block::Table(Table { title: "Paused".to_owned(), ..table(&controls, &columns) }));
    }
    let columns = ["lane", "state", "pending", "delayed", "dead", "verdict"];
    view.blocks.push(Block::Table(Table { title: "Lanes".to_owned(), empty: "No lane has had a message.".to_owned(), ..table(lanes, &columns) }));
    view.blocks.push(Block::Table(Table { title: "Relays and workers".to_owned(), empty: "None runs.".to_owned(), ..table(&instances, &INSTANCES) }));
    Ok(view)
}

const INSTANCES: [&str; 8] = ["instance", "role", "state", "in_flight", "lanes", "tail", "version", "seen_at"];

/// Groups of unsent messages, each with a link to its messages.
fn grouped(title: &str, path: &str, answer: &Value) -> Table {
    let rows = answer.get("rows").unwrap_or(&Value::Null);
    let mut table = Table { title: title.to_owned(), ..table(rows, &["messages", "group", "holding", "first", "last", "example"]) };
    for (row, group) in table.rows.iter_mut().zip(rows.as_array().into_iter().flatten()) {
        let group = text(group, "group");
        let (reason, error) = group.split_once(": ").unwrap_or((group, ""));
        let error: String = error.chars().take(80).collect();
        if let Some(cell) = row.get_mut(1) {
            cell.href = Some(href(path, [("reason", reason), ("error", error.as_str())]));
        }
    }
    table
}

fn field(visit: &Visit<'_>, name: &'static str, label: &'static str) -> Field {
    Field { name, label, value: visit.query.get(name).to_owned(), choices: Vec::new(), is_required: false }
}

fn choice(visit: &Visit<'_>, name: &'static str, label: &'static str, words: &[&str]) -> Field {
    let given = visit.query.get(name);
    let choices = words.iter().map(|word| ((*word).to_owned(), *word == given)).collect();
    Field { choices, ..field(visit, name, label) }
}

async fn messages(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    const NAMES: [&str; 7] = ["topic", "key", "type", "state", "since", "until", "below"];
    let mut view = View { title: "Messages".to_owned(), menu: "/messages", ..View::default() };
    let one = visit.query.get("message");
    if !one.is_empty() {
        return message(visit, one).await;
    }
    view.blocks.push(Block::Filter(Filter {
        action: "/messages".to_owned(),
        fields: vec![
            field(visit, "message", "Number or UUID"),
            field(visit, "topic", "Topic"),
            field(visit, "key", "Key"),
            field(visit, "type", "Type"),
            choice(visit, "state", "State", &["pending", "claimed", "delayed", "dead", "sent"]),
            field(visit, "since", "Since, such as 2h"),
            field(visit, "until", "Until"),
        ],
        submit: "Find",
    }));
    let parameters = from_address(visit, &NAMES);
    let [found] = visit.answers(&mut view, [request("messages/list", &parameters)]).await?;
    if found.is_null() {
        return Ok(view);
    }
    let rows = found.get("rows").unwrap_or(&Value::Null);
    let columns = ["id", "enqueued_at", "topic", "event_type", "state", "reason", "attempts", "error", "message_id"];
    let more = found.get("below").and_then(Value::as_u64).map(|below| {
        let below = below.to_string();
        let query = parameters.iter().copied().filter(|(name, _)| *name != "below").chain([("below", below.as_str())]);
        Link { text: "Go on with older messages".to_owned(), href: href("/messages", query), disabled: None }
    });
    let looked = found.get("looked_at").and_then(Value::as_u64);
    if let Some(looked) = looked {
        view.verdict = Some(format!("Looked at {looked} messages."));
    }
    view.blocks.push(Block::Table(Table { more, empty: "No message that was looked at fits.".to_owned(), ..table(rows, &columns) }));
    Ok(view)
}

async fn message(visit: &Visit<'_>, id: &str) -> Result<View, ApiRefusal> {
    let mut view = View { title: format!("Message {id}"), menu: "/messages", ..View::default() };
    let [why] = visit.answers(&mut view, [request("why", &[("message", id)])]).await?;
    if why.is_null() {
        return Ok(view);
    }
    let state = text(&why, "state");
    view.tone = tone(state);
    view.verdict = Some(text(&why, "why").to_owned());
    let number = why.get("id").and_then(Value::as_u64).map(|id| id.to_string()).unwrap_or_default();
    let mut links = Vec::new();
    match state {
        "dead" => links.extend([
            orders::link("dead/retry", "Retry", [("message", number.as_str())]),
            orders::link("dead/release", "Release its key", [("message", number.as_str())]),
            orders::link("dead/discard", "Discard", [("message", number.as_str())]),
        ]),
        "delayed" => links.push(orders::link("delayed/retry", "Publish now", [("message", number.as_str())])),
        _ => {}
    }
    if !number.is_empty() {
        links.push(Link { text: "Its key".to_owned(), href: href("/key", [("message", number.as_str())]), disabled: None });
    }
    if let Some(ahead) = text(&why, "remedy").strip_prefix("relay why ") {
        links.push(Link { text: format!("Message {ahead}"), href: format!("/message/{ahead}"), disabled: None });
    }
    view.blocks.push(Block::Orders(links));
    if let Some(remedy) = why.get("remedy").and_then(Value::as_str) {
        view.blocks.push(Block::Text("What helps".to_owned(), Cell::text(remedy).text));
    }
    view.blocks.push(Block::Events(life(&why)));
    let names = ["id", "message_id", "topic", "event_type", "lane", "state", "cause", "attempts", "trace_id", "expires_at", "replayed_to"];
    let given = names.iter().filter_map(|name| Some((name.replace('_', " "), Cell::of(why.get(*name).filter(|it| !it.is_null())?))));
    view.blocks.push(Block::Facts(given.collect()));
    Ok(view)
}

/// The events of a message, the oldest first.
fn life(why: &Value) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |at: &Value, what: String, tone| events.push(Event { at: Cell::of(at), what, tone });
    if let Some(at) = why.get("enqueued_at").filter(|at| !at.is_null()) {
        add(at, "enqueued".to_owned(), "");
    }
    for failure in why.get("failures").and_then(Value::as_array).into_iter().flatten() {
        let attempt = failure.get("attempt").and_then(Value::as_u64).unwrap_or_default();
        let error = Cell::text(text(failure, "error")).text;
        let owner = Cell::text(text(failure, "owner")).text;
        let what = format!("attempt {attempt} of {owner}: {} {error}", Cell::text(text(failure, "reason")).text);
        add(failure.get("failed_at").unwrap_or(&Value::Null), what, "bad");
    }
    for receipt in why.get("receipts").and_then(Value::as_array).into_iter().flatten() {
        let owner = Cell::text(text(receipt, "owner")).text;
        let what = format!("confirmed to {owner}, as {}", Cell::text(text(receipt, "place")).text);
        add(receipt.get("sent_at").unwrap_or(&Value::Null), what, "good");
    }
    if let Some(at) = why.get("due_at").filter(|at| !at.is_null()) {
        add(at, "due".to_owned(), "wait");
    }
    events
}

async fn keys(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Keys whose messages wait".to_owned(), menu: "/keys", ..View::default() };
    let [keys] = visit.answers(&mut view, [request("keys/blocked", &[])]).await?;
    let columns = ["messages", "id", "lane", "topic", "reason", "attempts", "due_at", "died_at", "error"];
    let mut table = Table { empty: "No key waits.".to_owned(), ..table(&keys, &columns) };
    for (row, key) in table.rows.iter_mut().zip(keys.as_array().into_iter().flatten()) {
        let id = number(key, "id").to_string();
        if let Some(cell) = row.first_mut() {
            cell.href = Some(href("/key", [("message", id.as_str())]));
        }
    }
    view.blocks.push(Block::Filter(Filter {
        action: "/key".to_owned(),
        fields: vec![field(visit, "topic", "Topic"), field(visit, "key", "Key")],
        submit: "Show the key",
    }));
    view.blocks.push(Block::Table(table));
    Ok(view)
}

async fn key(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "The queue of a key".to_owned(), menu: "/keys", ..View::default() };
    let parameters = from_address(visit, &["message", "topic", "key", "after"]);
    let [key] = visit.answers(&mut view, [request("keys/show", &parameters)]).await?;
    if key.is_null() {
        return Ok(view);
    }
    let first = key.get("first").unwrap_or(&Value::Null);
    view.verdict = Some(match first.get("why").and_then(Value::as_str) {
        Some(why) => format!("The first one: {why}"),
        None => "No message of this key is in the way of a later one.".to_owned(),
    });
    view.tone = if first.is_null() { "good" } else { tone(text(first, "state")) };
    let columns = ["id", "lane", "state", "reason", "attempts", "due_at", "died_at", "holds_key", "error"];
    let rows = key.get("rows").unwrap_or(&Value::Null);
    view.blocks.push(Block::Table(Table { title: "In the order in which they go out".to_owned(), empty: "No message of the key is unsent.".to_owned(), ..table(rows, &columns) }));
    Ok(view)
}

async fn unsent(visit: &Visit<'_>, state: &str, title: &str, menu: &'static str) -> Result<View, ApiRefusal> {
    const NAMES: [&str; 4] = ["reason", "topic", "error", "lane"];
    let mut view = View { title: title.to_owned(), menu, ..View::default() };
    let path = format!("/{state}");
    let filter = from_address(visit, &NAMES);
    view.blocks.push(Block::Filter(Filter {
        action: path.clone(),
        fields: vec![
            field(visit, "reason", "Reason"),
            field(visit, "topic", "Topic"),
            field(visit, "error", "Text of the error"),
            field(visit, "lane", "Lane"),
        ],
        submit: "Filter",
    }));
    let with = |name, value| filter.iter().copied().chain([(name, value)]).collect::<Vec<_>>();
    let list = format!("{state}/list");
    let after = visit.query.get("after");
    let requests = [request(&list, &with("group_by", "error")), request(&list, &with("after", after))];
    let [groups, rows] = visit.answers(&mut view, requests).await?;
    let given: Vec<(&str, &str)> = filter.iter().copied().filter(|(_, value)| !value.is_empty()).collect();
    let which = if given.is_empty() { vec![("all", "true")] } else { given.clone() };
    let scope = if given.is_empty() { "all" } else { "what the filter matches" };
    let links: &[(&str, &str)] = match state {
        "dead" => &[("dead/retry", "Retry"), ("dead/release", "Release the keys of"), ("dead/discard", "Discard")],
        "delayed" => &[("delayed/retry", "Publish now"), ("delayed/discard", "Take back, of replays,")],
        _ => &[],
    };
    let links = links.iter().map(|(order, text)| orders::link(order, &format!("{text} {scope}"), which.iter().copied()));
    view.blocks.push(Block::Orders(links.collect()));
    view.blocks.push(Block::Table(Table { empty: "There is none: nothing is to be done.".to_owned(), ..grouped("By reason and error", &path, &groups) }));
    let time = match state {
        "dead" => "died_at",
        "delayed" => "due_at",
        _ => "enqueued_at",
    };
    let columns = ["id", "lane", "topic", "reason", "attempts", time, "holds_key", "error", "message_id"];
    let more = rows.get("after").and_then(Value::as_str).map(|after| Link {
        text: "The next page".to_owned(),
        href: href(&path, filter.iter().copied().chain([("after", after)])),
        disabled: None,
    });
    let rows = rows.get("rows").unwrap_or(&Value::Null);
    view.blocks.push(Block::Table(Table { title: "Messages".to_owned(), more, ..table(rows, &columns) }));
    Ok(view)
}

fn replay(visit: &Visit<'_>) -> View {
    let fields = vec![
        field(visit, "message", "Number or UUID"),
        field(visit, "topic", "Topic"),
        field(visit, "lane", "Lane"),
        field(visit, "since", "Since, such as 2h"),
        field(visit, "until", "Until"),
        field(visit, "rate", "Messages a second"),
    ];
    View {
        title: "Send sent messages again".to_owned(),
        menu: "/replay",
        verdict: Some("The plan comes first: how many, how old, and for which consumers they are no longer duplicates.".to_owned()),
        blocks: vec![Block::Filter(Filter { action: "/order/replay".to_owned(), fields, submit: "Show the plan" })],
        ..View::default()
    }
}

async fn jobs(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Jobs".to_owned(), menu: "/jobs", ..View::default() };
    let [jobs] = visit.answers(&mut view, [request("jobs", &[])]).await?;
    let ordered = visit.query.get("ordered");
    if ordered.parse::<u64>().is_ok() {
        view.verdict = Some(format!("Job {ordered} is ordered. Relays carry it out."));
        view.tone = "good";
    }
    let columns = ["job", "action", "state", "done", "planned", "filter", "ordered_at", "created_at", "ended_at", "actor", "reason"];
    let mut table = table(&jobs, &columns);
    table.columns.push("order".to_owned());
    for (row, job) in table.rows.iter_mut().zip(jobs.as_array().into_iter().flatten()) {
        let is_open = job.get("ended_at").is_none_or(Value::is_null);
        let stop = orders::link("jobs/stop", "Stop", [("job", number(job, "job").to_string().as_str())]);
        row.push(if is_open { Cell::link(&stop.text, stop.href) } else { Cell::default() });
    }
    view.blocks.push(Block::Table(Table { empty: "Nobody has ordered any.".to_owned(), ..table }));
    Ok(view)
}

async fn controls(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Pauses".to_owned(), menu: "/controls", ..View::default() };
    let [controls] = visit.answers(&mut view, [request("controls", &[])]).await?;
    let mut table = table(&controls, &["kind", "name", "paused_at", "ends_at", "actor", "reason"]);
    table.columns.push("order".to_owned());
    for (row, pause) in table.rows.iter_mut().zip(controls.as_array().into_iter().flatten()) {
        let name = pause.get("name").map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
        let resume = orders::link("resume", "Resume", [(text(pause, "kind"), name.unwrap_or_default().as_str())]);
        row.push(Cell::link(&resume.text, resume.href));
    }
    view.blocks.push(Block::Table(Table { empty: "Nothing is paused.".to_owned(), ..table }));
    for (name, label) in [
        ("lane", "Lane"),
        ("sink", "Sink"),
        ("destination", "Destination, such as kafka/orders"),
        ("instance", "Relay, by its name"),
    ] {
        let fields = vec![
            Field { is_required: true, ..field(visit, name, label) },
            field(visit, "for", "For, such as 30m; empty: until it is resumed"),
        ];
        view.blocks.push(Block::Filter(Filter { action: "/order/pause".to_owned(), fields, submit: "Pause…" }));
    }
    Ok(view)
}

async fn relays(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Relays and workers".to_owned(), menu: "/relays", ..View::default() };
    let [instances] = visit.answers(&mut view, [request("instances", &[])]).await?;
    let mut table = table(&instances, &INSTANCES);
    table.columns.extend(["sinks".to_owned(), "order".to_owned()]);
    for (row, instance) in table.rows.iter_mut().zip(instances.as_array().into_iter().flatten()) {
        let sinks = instance.get("sinks").and_then(Value::as_object).into_iter().flatten();
        let sinks: Vec<_> = sinks
            .map(|(sink, refusal)| match refusal.as_str() {
                Some(refusal) => format!("{sink}: {refusal}"),
                None => format!("{sink}: takes messages"),
            })
            .collect();
        let is_down = instance.get("sinks").and_then(Value::as_object).is_some_and(|all| all.values().any(Value::is_string));
        row.push(Cell::text(&sinks.join("; ")).toned(if is_down { "bad" } else { "" }));
        let name = text(instance, "instance");
        row.push(match text(instance, "state") {
            "live" => Cell::link("Drain", href("/order/pause", [("instance", name)])),
            "drained" | "draining" => Cell::link("Resume", href("/order/resume", [("instance", name)])),
            _ => Cell::default(),
        });
    }
    view.blocks.push(Block::Table(Table { empty: "None has written a heartbeat for a day. Start a relay.".to_owned(), ..table }));
    Ok(view)
}

async fn consumers(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Consumers of this database's inbox".to_owned(), menu: "/consumers", ..View::default() };
    let [consumers, dead] =
        visit.answers(&mut view, [request("inbox/consumers", &[]), request("inbox/dead", &[])]).await?;
    let columns = ["consumer", "processed", "last_at", "dead", "last_dead_at"];
    view.blocks.push(Block::Table(Table { title: "Consumers".to_owned(), ..table(&consumers, &columns) }));
    let columns = ["consumer", "message_id", "topic", "reason", "attempts", "died_at", "error"];
    let rows = dead.get("rows").unwrap_or(&dead);
    view.blocks.push(Block::Table(Table { title: "Messages that they gave up".to_owned(), ..table(rows, &columns) }));
    Ok(view)
}

async fn audit(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view = View { title: "Audit".to_owned(), menu: "/audit", ..View::default() };
    let [audit] = visit.answers(&mut view, [request("audit", &[])]).await?;
    let columns = ["entry", "at", "actor", "account", "via", "action", "job", "messages", "target", "reason"];
    view.blocks.push(Block::Table(Table { empty: "Nobody has given an order.".to_owned(), ..table(&audit, &columns) }));
    Ok(view)
}
