//! The pages: which commands each one asks, and how it shows their answers.

mod consumers;
mod destinations;
mod doctor;
mod fleet;
mod lists;
mod message;
mod messages;
mod now;
mod replay;
mod unsent;

use std::{fmt::Display, sync::Arc};

use axum::http::StatusCode;
use outbox_relay::operate::{jobs::Action, shown::counted};
use serde_json::Value;

pub(super) use self::{fleet::fleet, replay::duplicates};
use super::{
    Api, ApiRefusal, Caller, Request, Role, Visit, orders,
    view::{
        Block, Cell, Confirm, Event, Field, Filter, Finding, Link, Step, Table, View, command, grouped, href, moment,
        sentence,
    },
};

/// The menu: path and name.
pub(super) const MENU: &[(&str, &str)] = &[
    ("/", "Now"),
    ("/messages", "Messages"),
    ("/keys", "Keys"),
    ("/dead", "Dead"),
    ("/delayed", "Delayed"),
    ("/destinations", "Destinations"),
    ("/relays", "Relays"),
    ("/consumers", "Consumers"),
    ("/replay", "Replay"),
    ("/jobs", "Jobs"),
    ("/controls", "Pauses"),
    ("/audit", "Audit"),
    ("/doctor", "Doctor"),
];

/// Makes the page at a path.
///
/// # Errors
///
/// If there is none, or its commands are refused.
pub(super) async fn view(visit: &Visit<'_>, path: &str, is_post: bool) -> Result<View, ApiRefusal> {
    if is_post {
        return match path.strip_prefix("/message/").and_then(|rest| rest.strip_suffix("/reveal")) {
            Some(id) => message::reveal(visit, id).await,
            None => Err(missing(path)),
        };
    }
    let mut view = page(visit, path).await?;
    if let Some(notice) = orders::notice(visit) {
        view.blocks.insert(0, Block::Notice(notice));
    }
    Ok(view)
}

async fn page(visit: &Visit<'_>, path: &str) -> Result<View, ApiRefusal> {
    match path {
        "/" => now::view(visit).await,
        "/messages" => messages::view(visit).await,
        "/keys" => messages::keys(visit).await,
        "/key" => messages::key(visit).await,
        "/dead" => unsent::view(visit, &unsent::DEAD).await,
        "/delayed" => unsent::view(visit, &unsent::DELAYED).await,
        "/pending" => unsent::view(visit, &unsent::PENDING).await,
        "/destinations" => destinations::view(visit).await,
        "/relays" => lists::relays(visit).await,
        "/consumers" => consumers::view(visit).await,
        "/replay" => Ok(replay::view(visit)),
        "/jobs" => lists::jobs(visit).await,
        "/controls" => lists::controls(visit).await,
        "/audit" => lists::audit(visit).await,
        "/doctor" => doctor::view(visit).await,
        _ => match path.strip_prefix("/message/") {
            // A browser that loads a revealed message again shows it hidden.
            Some(id) if !id.is_empty() => message::view(visit, id.strip_suffix("/reveal").unwrap_or(id)).await,
            _ => Err(missing(path)),
        },
    }
}

pub(super) fn missing(path: &str) -> ApiRefusal {
    (StatusCode::NOT_FOUND, format!("There is no page {path}. Choose one above."))
}

pub(super) fn request(path: &str, parameters: &[(&str, &str)]) -> Request {
    let given = parameters.iter().filter(|(_, value)| !value.is_empty());
    let parameters = given.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Request { path: path.to_owned(), parameters }
}

impl Visit<'_> {
    /// Asks commands on one connection, and adds them and their problems to the page. An answer that failed is null.
    async fn answers<const N: usize>(&self, view: &mut View, requests: [Request; N]) -> Result<[Value; N], ApiRefusal> {
        view.commands.extend(requests.iter().map(command));
        let mut values = [const { Value::Null }; N];
        let answers = match self.api.ask(&self.caller, &requests, false).await {
            Ok(answers) => answers,
            Err((StatusCode::BAD_REQUEST, problem)) => {
                view.problem(&problem);
                return Ok(values);
            }
            Err(error) => return Err(error),
        };
        for (value, answer) in values.iter_mut().zip(answers) {
            match answer {
                Ok(answer) => *value = answer,
                Err((_, problem)) => view.problem(&problem),
            }
        }
        Ok(values)
    }

    /// The parameters of these names that the address has.
    fn in_address<'b>(&'b self, names: &[&'b str]) -> Vec<(&'b str, &'b str)> {
        names.iter().map(|name| (*name, self.query.get(name))).collect()
    }

    pub(super) fn field(&self, name: &'static str, label: &'static str) -> Field {
        Field { name, label, value: self.query.get(name).to_owned(), choices: Vec::new(), is_required: false }
    }

    fn choice(&self, name: &'static str, label: &'static str, words: &[&str]) -> Field {
        let given = self.query.get(name);
        let choices = words.iter().map(|word| ((*word).to_owned(), *word == given)).collect();
        Field { choices, ..self.field(name, label) }
    }
}

/// These columns of a list of objects. Columns without any value are left out.
pub(super) fn table(list: &Value, columns: &[&str]) -> Table {
    let rows: Vec<&Value> = rows(list).collect();
    let has = |column: &&&str| rows.is_empty() || rows.iter().any(|row| !is_empty(row.get(column)));
    let columns: Vec<&str> = columns.iter().filter(has).copied().collect();
    Table {
        is_unknown: list.is_null(),
        rows: rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect(),
        columns: columns.iter().map(|column| label(column)).collect(),
        empty: "There is none.".to_owned(),
        ..Table::default()
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    value.is_none_or(|value| {
        value.is_null() || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty)
    })
}

/// The heading of a column or fact.
pub(super) fn label(name: &str) -> String {
    match name {
        "id" => "message".to_owned(),
        "example" => "for example".to_owned(),
        "message_id" => "UUID".to_owned(),
        "holds_key" => "holds up its key".to_owned(),
        "group" => "reason".to_owned(),
        _ => name.strip_suffix("_at").unwrap_or(name).replace('_', " "),
    }
}

fn cell(row: &Value, column: &str) -> Cell {
    let value = row.get(column).unwrap_or(&Value::Null);
    let cell = Cell::of(value);
    match (column, value) {
        ("id" | "example", Value::Number(id)) => Cell::link(&id.to_string(), format!("/message/{id}")),
        ("message_id", Value::String(id)) => Cell { href: Some(format!("/message/{id}")), ..cell.toned("code") },
        ("action", Value::String(word)) => Cell::text(action(word)),
        ("filter" | "target", Value::String(text)) => Cell::text(&filter(text)),
        ("state" | "outcome", Value::String(state)) => cell.toned(tone(state)),
        ("entry" | "job" | "lane" | "retry", Value::Number(number)) => Cell::text(&number.to_string()).toned("number"),
        _ => cell,
    }
}

/// The filter of a job, which is JSON, as words. Other targets are names.
fn filter(text: &str) -> String {
    let Ok(Value::Object(parts)) = serde_json::from_str(text) else { return text.to_owned() };
    let part = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name}: {text}"),
        value => format!("{name}: {value}"),
    };
    if parts.is_empty() { "all".to_owned() } else { parts.iter().map(part).collect::<Vec<_>>().join(", ") }
}

/// The order that a job or an entry of the audit is of, by the words of its button.
fn action(word: &str) -> &str {
    let texts = [
        (Action::Hurry.word(), "publish now"),
        (Action::DiscardDelayed.word(), "take back"),
        ("inbox-retry", "retry at the consumer"),
    ];
    texts.iter().find(|(known, _)| *known == word).map_or(word, |(_, text)| text)
}

fn tone(state: &str) -> &'static str {
    match state {
        "sent" | "live" | "busy" | "idle" | "claimed" | "processed" => "good",
        "dead" | "stuck" | "gone" | "lost" | "unserved" | "unknown" => "bad",
        "delayed" | "waiting" | "paused" | "draining" | "drained" => "wait",
        _ => "",
    }
}

pub(super) fn rows(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

pub(super) fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The page or plan of a command that an answer names, such as `relay delayed retry --reason parked`.
fn link_of(command: &str) -> Option<Link> {
    let mut words = command.strip_prefix("relay ")?.split_whitespace().peekable();
    let mut path = vec![words.next()?];
    let mut query = Vec::new();
    while let Some(word) = words.next() {
        match word.strip_prefix("--") {
            Some(name) if words.peek().is_some_and(|next| !next.starts_with("--")) => query.push((name, words.next()?)),
            Some(name) => query.push((name, "true")),
            None if word.bytes().all(|byte| byte.is_ascii_digit()) => query.push(("message", word)),
            None => path.push(word),
        }
    }
    query.retain(|(name, _)| !matches!(*name, "because" | "yes" | "group-by"));
    match (path.join("/").as_str(), query.as_slice()) {
        ("why", [(_, id)]) => Some(Link::to(&format!("Look at message {id}"), format!("/message/{id}"))),
        ("resume", query) => Some(orders::link("resume", "Resume…", query.iter().copied())),
        ("dead/list", query) => Some(Link::to("Look at the dead ones", href("/dead", query.iter().copied()))),
        ("delayed/list", query) => Some(Link::to("Look at those that wait", href("/delayed", query.iter().copied()))),
        ("delayed/retry", query) => Some(orders::link("delayed/retry", "Publish now…", query.iter().copied())),
        ("instances", _) => Some(Link::to("Look at the relays", "/relays")),
        ("jobs", _) => Some(Link::to("Look at the jobs", "/jobs")),
        _ => None,
    }
}

/// A text without the pages of the documentation, which a browser here cannot open.
fn without_pages(text: &str) -> String {
    let text = text.split(" docs/").next().unwrap_or(text);
    text.trim_end_matches([':', ' ', ',']).to_owned()
}

/// A number of messages in a second.
fn rate(count: u64) -> Cell {
    Cell::text(&format!("{}/s", grouped(&count.to_string()))).toned("number")
}

/// A link to a plan whose one parameter has this value.
fn order_of(path: &str, text: &str, name: &str, value: impl Display) -> Link {
    orders::link(path, text, [(name, value.to_string().as_str())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_an_answer_leads_to_its_page() {
        let to = |command| link_of(command).map(|link| link.href);
        for (command, expected) in [
            ("relay why 314", Some("/message/314")),
            ("relay resume --lane 3 --because …", Some("/order/resume?lane=3")),
            ("relay delayed retry --reason parked --lane 0", Some("/order/delayed/retry?reason=parked&lane=0")),
            ("relay dead list --group-by error --lane 0", Some("/dead?lane=0")),
            ("kafka-topics.sh --create", None),
            ("relay doctor --config RELAY.toml", None),
        ] {
            assert_eq!(to(command).as_deref(), expected, "{command}");
        }
        assert_eq!(without_pages("create it: docs/runbook.md#x"), "create it");
    }
}
