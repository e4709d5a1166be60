//! A message: why it is not sent, and its life.

use super::{
    ApiRefusal, Block, Cell, Confirm, Event, Link, Role, Value, View, Visit, consumers::retry, href, label, order_of,
    request, rows, sentence, text, tone,
};

pub(super) async fn view(visit: &Visit<'_>, id: &str) -> Result<View, ApiRefusal> {
    let mut view = View { title: format!("Message {id}"), menu: "/messages", is_live: true, ..View::default() };
    let asked = [("message", id)];
    let [why, outcomes] = visit.answers(&mut view, [request("why", &asked), request("inbox/show", &asked)]).await?;
    if why.is_null() {
        return Ok(view);
    }
    show(visit, &mut view, id, &why, &outcomes);
    let lacks = visit.lacks(Role::Revealer, "revealer");
    view.blocks.push(Block::Confirm(Confirm {
        title: "Key, headers and payload".to_owned(),
        action: format!("/message/{id}/reveal"),
        submit: "Reveal".to_owned(),
        warning: Some("They may be personal data: the audit keeps who has seen them, and why.".to_owned()),
        disabled: lacks,
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
    for name in ["key", "headers", "payload"] {
        let contents = message.get(name).filter(|value| !value.is_null());
        let text = contents.map(|value| match value {
            Value::String(text) => lines(text),
            other => serde_json::to_string_pretty(other).map_or_else(|error| error.to_string(), |text| lines(&text)),
        });
        view.blocks.push(Block::Code(label(name), text.unwrap_or_else(|| "none".to_owned())));
    }
    show(visit, &mut view, id, &message, &Value::Null);
    Ok(view)
}

/// The lines of a text. Other control characters, and marks of direction, are shown as escapes.
fn lines(text: &str) -> String {
    text.lines().map(|line| Cell::text(line).text).collect::<Vec<_>>().join("\n")
}

fn show(visit: &Visit<'_>, view: &mut View, id: &str, why: &Value, outcomes: &Value) {
    let state = text(why, "state");
    view.tone = tone(state);
    view.verdict = Some(text(why, "why").to_owned());
    let number = why.get("id").and_then(Value::as_u64).map_or_else(|| id.to_owned(), |number| number.to_string());
    let order = |path: &str, name: &str| order_of(path, name, "message", &number);
    let mut links = match state {
        "dead" => vec![
            order("dead/retry", "Retry…"),
            order("dead/release", "Release its key…"),
            order("dead/discard", "Discard…"),
        ],
        "delayed" => vec![order("delayed/retry", "Publish now…")],
        "sent" => vec![order("replay", "Send again…")],
        _ => Vec::new(),
    };
    if let Some(ahead) = text(why, "remedy").strip_prefix("relay why ") {
        links.insert(0, Link::to(&format!("Look at message {ahead}, which is ahead"), format!("/message/{ahead}")));
    }
    links.push(Link::to("Its key", href("/key", [("message", number.as_str())])));
    let trace = text(why, "trace_id");
    if !trace.is_empty() && !visit.api.trace_url.is_empty() {
        let trace: String = url::form_urlencoded::byte_serialize(trace.as_bytes()).collect();
        let address = visit.api.trace_url.replace("{trace_id}", &trace);
        links.push(Link { is_elsewhere: true, ..Link::to("Its trace", address) });
    }
    view.blocks.push(Block::Orders(links));
    if let Some(remedy) = why.get("remedy").and_then(Value::as_str) {
        view.blocks.push(Block::Text("What helps".to_owned(), sentence(&Cell::text(remedy).text)));
    }
    view.blocks.push(Block::Events(life(why, outcomes)));
    let given_up: Vec<_> = rows(outcomes).filter(|outcome| text(outcome, "outcome") == "dead").collect();
    if !given_up.is_empty() {
        let with_id = |outcome: &&Value| serde_json::json!({"consumer": text(outcome, "consumer"), "message_id": text(why, "message_id")});
        let named = |message: Value| {
            let link = retry(&message);
            Link { text: format!("Let {} retry it…", text(&message, "consumer")), ..link }
        };
        view.blocks.push(Block::Orders(given_up.iter().map(with_id).map(named).collect()));
    }
    let names = [
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

/// The events of a message, the oldest first.
fn life(why: &Value, outcomes: &Value) -> Vec<Event> {
    let mut events = Vec::new();
    let mut add = |at: Option<&Value>, what: String, tone| {
        if let Some(at) = at.filter(|at| !at.is_null()) {
            events.push(Event { at: Cell::of(at), what: Cell::text(&what).text, tone });
        }
    };
    add(why.get("enqueued_at"), "enqueued".to_owned(), "");
    for failure in rows(why.get("failures").unwrap_or(&Value::Null)) {
        let attempt = failure.get("attempt").and_then(Value::as_u64).unwrap_or_default();
        let what = format!(
            "attempt {attempt} by {}: {}: {}",
            text(failure, "owner"),
            text(failure, "reason"),
            text(failure, "error")
        );
        add(failure.get("failed_at"), what, "bad");
    }
    for receipt in rows(why.get("receipts").unwrap_or(&Value::Null)) {
        let what = format!("confirmed to {}, as {}", text(receipt, "owner"), text(receipt, "place"));
        add(receipt.get("sent_at"), what, "good");
    }
    for outcome in rows(outcomes) {
        let consumer = text(outcome, "consumer");
        let (what, tone) = match text(outcome, "outcome") {
            "dead" => {
                (format!("given up by {consumer}: {}: {}", text(outcome, "reason"), text(outcome, "error")), "bad")
            }
            _ => (format!("processed by {consumer}"), "good"),
        };
        add(outcome.get("at"), what, tone);
    }
    add(why.get("due_at"), "due".to_owned(), "wait");
    events
}
