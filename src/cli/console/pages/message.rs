//! A message: why it is not sent, and its life.

use outbox_relay::operate::shown::lines;
use serde_json::json;

use super::{
    ApiRefusal, Block, Cell, Confirm, Event, Link, Role, Value, View, Visit, consumers::retry, href, label, link_of,
    moment, order_of, request, rows, sentence, text, tone, without_pages,
};

pub(super) async fn view(visit: &Visit<'_>, id: &str) -> Result<View, ApiRefusal> {
    let mut view = View { title: format!("Message {id}"), menu: "/messages", is_live: true, ..View::default() };
    let asked = [("message", id)];
    let [why] = visit.answers(&mut view, [request("why", &asked)]).await?;
    if why.is_null() {
        return Ok(view);
    }
    let message_id = text(&why, "message_id");
    if message_id.is_empty() {
        // There is no such message, or no more.
        view.verdict = Some(text(&why, "why").to_owned());
        view.blocks.extend(link_of(text(&why, "remedy")).map(|link| Block::Orders(vec![link])));
        return Ok(view);
    }
    let requests = [request("inbox/show", &[("message", message_id)]), request("inbox/retries", &[])];
    let [outcomes, retries] = visit.answers(&mut view, requests).await?;
    let known = MessageAnswers { why: &why, outcomes: &outcomes, retries: &retries };
    known.show(visit, &mut view, id);
    view.blocks.push(Block::Confirm(Confirm {
        title: "Key, headers and payload".to_owned(),
        action: format!("/message/{id}/reveal"),
        submit: "Reveal".to_owned(),
        warning: Some("They may be personal data: the audit keeps who has seen them, and why.".to_owned()),
        disabled: visit.lacks(Role::Revealer, "revealer"),
        ..Confirm::default()
    }));
    Ok(view)
}

/// Makes the page of a message with its contents.
pub(super) async fn reveal(visit: &Visit<'_>, id: &str) -> Result<View, ApiRefusal> {
    let because = visit.query.get("because");
    let parameters = [("message", id), ("reveal", "true"), ("because", because)];
    let request = request("messages/show", &parameters);
    let mut answers = visit.api.ask(&visit.caller, &[request], true).await?;
    let message = answers.pop().transpose()?.unwrap_or_default();
    let mut view = View { title: format!("Message {id}"), menu: "/messages", ..View::default() };
    view.commands = vec![format!("relay messages show {id} --reveal --because …")];
    MessageAnswers { why: &message, outcomes: &Value::Null, retries: &Value::Null }.show(visit, &mut view, id);
    for name in ["key", "content_type", "headers", "payload"] {
        view.blocks.push(contents(&message, name));
    }
    Ok(view)
}

/// Most characters of a payload that are shown.
const SHOWN: usize = 256 * 1024;

/// The key, headers or payload.
fn contents(message: &Value, name: &str) -> Block {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_else(|error| error.to_string()),
    };
    let given = |name: &str| message.get(name).filter(|value| !value.is_null()).map(text);
    let (label, text) = match (given(name), given(&format!("{name}_hex"))) {
        (Some(text), _) => (label(name), text),
        (None, Some(digits)) => (format!("{}, which is no text, in hexadecimal digits", label(name)), digits),
        (None, None) => (label(name), "none".to_owned()),
    };
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => {
            let label = format!("The first {SHOWN} characters of the {label}, which has {} bytes", text.len());
            Block::Code(label, lines(text.get(..end).unwrap_or_default()))
        }
        None => Block::Code(label, lines(&text)),
    }
}

/// The answers about a message.
struct MessageAnswers<'a> {
    why: &'a Value,
    outcomes: &'a Value,
    /// Orders to consumers.
    retries: &'a Value,
}

impl MessageAnswers<'_> {
    fn show(&self, visit: &Visit<'_>, view: &mut View, id: &str) {
        let why = self.why;
        let given_up: Vec<_> = self.of_consumers("dead").collect();
        view.tone = if given_up.is_empty() { tone(text(why, "state")) } else { "bad" };
        let more = given_up.iter().map(|outcome| format!(" {} has given it up.", text(outcome, "consumer")));
        view.verdict = Some(text(why, "why").to_owned() + &more.collect::<String>());
        view.blocks.push(Block::Orders(self.links(visit, id)));
        let remedy = without_pages(text(why, "remedy"));
        if self.outcomes.as_array().is_none_or(Vec::is_empty) && link_of(&remedy).is_none() && !remedy.is_empty() {
            view.blocks.push(Block::Text("What helps".to_owned(), sentence(&Cell::text(&remedy).text)));
        }
        view.blocks.push(Block::Events(self.life()));
        let names = [
            "id",
            "message_id",
            "topic",
            "event_type",
            "lane",
            "state",
            "cause",
            "attempts",
            "trace_id",
            "expires_at",
            "replayed_to",
        ];
        let fact = |name: &&str| (label(name), Cell { href: None, ..super::cell(why, name) });
        let facts = names.iter().map(fact).filter(|(_, cell)| !cell.text.is_empty());
        view.blocks.push(Block::Facts(facts.collect()));
    }

    fn of_consumers(&self, outcome: &'static str) -> impl Iterator<Item = &Value> {
        rows(self.outcomes).filter(move |it| text(it, "outcome") == outcome)
    }

    /// The retries of this message that no consumer has ended.
    fn ordered(&self) -> impl Iterator<Item = &Value> {
        let id = text(self.why, "message_id");
        rows(self.retries).filter(move |it| text(it, "message_id") == id && text(it, "state") != "done")
    }

    /// Links to orders and pages, the most helpful first.
    fn links(&self, visit: &Visit<'_>, id: &str) -> Vec<Link> {
        let why = self.why;
        let number = why.get("id").and_then(Value::as_u64).map_or_else(|| id.to_owned(), |number| number.to_string());
        let order = |path: &str, name: &str| order_of(path, name, "message", &number);
        let mut links: Vec<_> = link_of(text(why, "remedy")).into_iter().collect();
        for outcome in self.of_consumers("dead") {
            let consumer = text(outcome, "consumer");
            if self.ordered().all(|it| text(it, "consumer") != consumer) {
                let message = json!({"consumer": consumer, "message_id": text(why, "message_id")});
                links.push(Link { text: format!("Let {consumer} retry it…"), ..retry(&message) });
            }
        }
        match (text(why, "state"), text(why, "cause")) {
            ("dead", _) => links.extend([
                order("dead/retry", "Retry…"),
                order("dead/release", "Release its key…"),
                order("dead/discard", "Discard…"),
            ]),
            ("delayed", "parked" | "unroutable") => {
                links.push(Link::to("Its destination", "/destinations"));
                links.push(order("delayed/retry", "Publish now…"));
            }
            ("delayed", cause) if cause != "behind" => links.push(order("delayed/retry", "Publish now…")),
            ("sent", _) => links.push(order("replay", "Send again…")),
            _ => {}
        }
        links.push(Link::to("Its key", href("/key", [("message", number.as_str())])));
        let trace = text(why, "trace_id");
        if !trace.is_empty() && !visit.api.trace_url.is_empty() {
            let trace: String = url::form_urlencoded::byte_serialize(trace.as_bytes()).collect();
            let address = visit.api.trace_url.replace("{trace_id}", &trace);
            links.push(Link { is_elsewhere: true, ..Link::to("Its trace", address) });
        }
        links
    }

    /// The events of the message, the oldest first.
    fn life(&self) -> Vec<Event> {
        let why = self.why;
        let mut events = Vec::new();
        let mut add = |at: Option<&Value>, what: String, tone| {
            if let Some(at) = at.filter(|at| !at.is_null()) {
                events.push(Event { at: Cell::of(at), what: Cell::text(&what).text, tone });
            }
        };
        add(why.get("enqueued_at"), "enqueued".to_owned(), "");
        for failure in rows(why.get("failures").unwrap_or(&Value::Null)) {
            let attempt = failure.get("attempt").and_then(Value::as_u64).unwrap_or_default();
            let [owner, reason, error] = ["owner", "reason", "error"].map(|name| text(failure, name));
            add(failure.get("failed_at"), format!("attempt {attempt} by {owner}: {reason}: {error}"), "bad");
        }
        for receipt in rows(why.get("receipts").unwrap_or(&Value::Null)) {
            let what = format!("confirmed as {}, and noted by {}", text(receipt, "place"), text(receipt, "owner"));
            add(receipt.get("sent_at"), what, "good");
        }
        for outcome in self.of_consumers("processed") {
            add(outcome.get("at"), format!("processed by {}", text(outcome, "consumer")), "good");
        }
        for outcome in self.of_consumers("dead") {
            let [consumer, reason, error] = ["consumer", "reason", "error"].map(|name| text(outcome, name));
            add(outcome.get("at"), format!("given up by {consumer}: {reason}: {error}"), "bad");
        }
        for order in self.ordered() {
            let what = format!("retry ordered from {}: {}", text(order, "consumer"), text(order, "state"));
            add(order.get("ordered_at"), what, "wait");
        }
        add(why.get("due_at"), "due".to_owned(), "wait");
        events.sort_by_key(|event| event.at.time.as_deref().and_then(moment));
        events
    }
}
