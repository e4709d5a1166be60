//! Orders: a plan, a reason, and for more than one message their number typed in.

use std::collections::VecDeque;

use axum::http::StatusCode;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use outbox_core::Uuid;
use outbox_relay::operate::shown::counted;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    ApiRefusal, Request, Role, Visit,
    pages::{duplicates, label, number, request, rows, text},
    view::{Block, Cell, Confirm, Field, Link, Table, View, command, href},
};

/// The field that makes a form one order, however often it is sent.
const ONCE: &str = "once";
/// The field with the digest of the plan that was seen.
const SEEN: &str = "seen";
/// Fields that a person fills in.
const FILLED: [&str; 3] = ["for", "rate", "confirm_destination"];
/// The orders that are remembered.
const REMEMBERED: usize = 10_000;

/// The forms that were sent: a double click, or the way back, gives no second order.
static GIVEN: Mutex<VecDeque<Given>> = Mutex::new(VecDeque::new());

/// A form that was sent.
struct Given {
    once: Uuid,
    caller: String,
    /// The outcome, as a sentence.
    notice: String,
}

/// Returns the outcome of the order that led to this page.
pub(super) fn notice(visit: &Visit<'_>) -> Option<String> {
    let done: Uuid = visit.query.get("done").parse().ok()?;
    let given = GIVEN.lock();
    let found = given.iter().find(|it| it.once == done && it.caller == visit.caller.name);
    found.map(|it| it.notice.clone())
}

/// An order, and how it is shown.
struct Order {
    path: &'static str,
    title: &'static str,
    /// The text of its button; `{}` stands for its messages.
    submit: &'static str,
    /// A sentence before the button.
    warning: Option<&'static str>,
    /// Whether it has a plan; the others do one thing.
    has_plan: bool,
    /// The outcome, as a sentence, of an order that is no job.
    done: &'static str,
}

const fn planned(
    path: &'static str,
    title: &'static str,
    submit: &'static str,
    warning: Option<&'static str>,
) -> Order {
    Order { path, title, submit, warning, has_plan: true, done: "There was nothing left to do: no order was given." }
}

const fn single(path: &'static str, title: &'static str, submit: &'static str, done: &'static str) -> Order {
    Order { path, title, submit, warning: None, has_plan: false, done }
}

const ORDERS: [Order; 10] = [
    planned("dead/retry", "Retry dead messages", "Retry {}", None),
    planned(
        "dead/release",
        "Release the keys of dead messages",
        "Release the keys of {}",
        Some("Later messages of these keys go out without the dead ones, which stay dead: their order is given up."),
    ),
    planned("dead/discard", "Discard dead messages", "Discard {}", Some("Their contents are deleted for good.")),
    planned("delayed/retry", "Publish waiting messages now", "Publish {} now", None),
    planned("delayed/discard", "Take waiting messages of a replay back", "Take {} back", None),
    planned(
        "replay",
        "Send sent messages again",
        "Send {} again",
        Some("A consumer whose inbox has forgotten a message does its work twice."),
    ),
    Order {
        warning: Some("Its messages wait meanwhile; other messages go on."),
        ..single("pause", "Pause", "Pause", "The pause is recorded. Relays follow it within a second.")
    },
    single("resume", "Resume", "Resume", "The pause is over. Relays follow within a second."),
    Order {
        warning: Some("A running consumer takes it up, behind newer messages of the key."),
        ..single(
            "inbox/retry",
            "Let a consumer retry what it gave up",
            "Retry {}",
            "The retry is ordered. The consumer takes it up as soon as it runs.",
        )
    },
    Order {
        warning: Some("What it has done stays done."),
        ..single("jobs/stop", "Stop a job", "Stop", "The job is stopped.")
    },
];

fn of(path: &str) -> Result<&'static Order, ApiRefusal> {
    ORDERS
        .iter()
        .find(|order| order.path == path)
        .ok_or_else(|| (StatusCode::NOT_FOUND, "there is no such order".to_owned()))
}

/// A link to the plan of an order.
pub(super) fn link<'a>(path: &str, text: &str, query: impl IntoIterator<Item = (&'a str, &'a str)>) -> Link {
    Link::to(text, href(&format!("/order/{path}"), query))
}

/// The parameters of the command.
fn parameters(visit: &Visit<'_>) -> Vec<(String, String)> {
    let own = ["form_token", ONCE, SEEN, "because", "yes", "count"];
    let given = visit.query.0.iter().filter(|(name, value)| !own.contains(&name.as_str()) && !value.trim().is_empty());
    given.cloned().collect()
}

/// The page of an order: its plan and its form.
pub(super) async fn view(visit: &Visit<'_>, path: &str) -> Result<View, ApiRefusal> {
    let order = of(path)?;
    let mut parameters = parameters(visit);
    parameters.retain(|(name, _)| !FILLED.contains(&name.as_str()));
    let request = Request { path: order.path.to_owned(), parameters };
    let mut view = View { title: order.title.to_owned(), menu: menu(order.path), ..View::default() };
    let planned = if order.has_plan {
        planned_messages(visit, order, &request, &mut view).await?
    } else {
        let facts = request.parameters.iter().map(|(name, value)| (label(name), Cell::text(value)));
        view.blocks.push(Block::Facts(facts.collect()));
        Some((given_up(visit, order).await?, String::new()))
    };
    let Some((count, seen)) = planned else {
        view.blocks.push(Block::Orders(vec![Link::to("Back", menu(order.path))]));
        return Ok(view);
    };
    let mut shown = request.clone();
    let more = [("yes", "true", order.has_plan), ("because", "…", true)];
    let to = visit.query.get("to");
    let more = more.into_iter().chain([("confirm_destination", to, !to.is_empty())]);
    let more = more.filter(|(.., is_given)| *is_given);
    shown.parameters.extend(more.map(|(name, value, _)| (name.to_owned(), value.to_owned())));
    view.commands.push(command(&shown));
    let once = [(ONCE, Uuid::now_v7().to_string()), (SEEN, seen)].map(|(name, value)| (name.to_owned(), value));
    let is_drain = order.path == "pause" && !visit.query.get("instance").is_empty();
    let is_sink = order.path == "pause" && !visit.query.get("sink").is_empty();
    let warning = match (is_drain, is_sink) {
        (true, _) => Some("It finishes what is in flight, and claims no more."),
        (_, true) => Some("All destinations of the sink wait meanwhile."),
        _ => order.warning,
    };
    view.blocks.push(Block::Confirm(Confirm {
        action: format!("/order/{path}"),
        hidden: once.into_iter().chain(request.parameters).collect(),
        fields: fields(visit, order, count),
        because: visit.query.get("because").to_owned(),
        count: Some(count).filter(|count| *count > 1),
        submit: order.submit.replace("{}", &counted(count, "message", "messages")),
        warning: warning.map(str::to_owned),
        is_final: order.path == "dead/discard",
        disabled: visit.lacks(Role::Operator, "operator"),
        ..Confirm::default()
    }));
    Ok(view)
}

/// The messages of an order without a plan: all that a consumer has given up, or one.
async fn given_up(visit: &Visit<'_>, order: &Order) -> Result<u64, ApiRefusal> {
    if order.path != "inbox/retry" || visit.query.get("all").is_empty() {
        return Ok(1);
    }
    let consumers = visit.ask_one(&request("inbox/list", &[])).await?;
    let consumer = rows(&consumers).find(|it| text(it, "consumer") == visit.query.get("consumer"));
    let messages = consumer.map(|consumer| number(consumer, "dead")).filter(|messages| *messages > 0);
    let none = || (StatusCode::UNPROCESSABLE_ENTITY, "nothing was ordered: it has given up no message".to_owned());
    messages.ok_or_else(none)
}

/// A digest of a plan, by which an order is of the messages that were seen.
fn digest(plan: &Value) -> String {
    let parts = ["messages", "keys", "oldest", "newest", "topics"].map(|name| plan.get(name));
    let samples = plan.get("samples").and_then(Value::as_array).into_iter().flatten();
    let ids: Vec<_> = samples.map(|sample| sample.get("id")).collect();
    BASE64.encode(Sha256::digest(format!("{parts:?}{ids:?}")))
}

/// Shows the plan of an order. Returns the number of its messages, and its digest; `None`: there is nothing to do, or a
/// problem.
async fn planned_messages(
    visit: &Visit<'_>,
    order: &Order,
    request: &Request,
    view: &mut View,
) -> Result<Option<(u64, String)>, ApiRefusal> {
    let plan = match visit.ask_one(request).await {
        Ok(answer) => answer.get("plan").cloned().unwrap_or_default(),
        Err((StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, problem)) => {
            view.problem(&problem);
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let messages = plan.get("messages").and_then(Value::as_u64).unwrap_or_default();
    if messages == 0 {
        let left_out = plan.get("left_out").and_then(Value::as_object).into_iter().flatten();
        let reasons: Vec<_> = left_out.map(|(reason, count)| format!("{count} left out: {reason}")).collect();
        let reasons = if reasons.is_empty() { "no message fits".to_owned() } else { reasons.join("; ") };
        view.verdict = Some(format!("There is nothing to do: {reasons}."));
        return Ok(None);
    }
    view.verdict = Some(format!("The plan has {}. Nothing is changed yet.", counted(messages, "message", "messages")));
    show(view, &plan);
    let waits = |reason: &str| {
        let mut samples = plan.get("samples").and_then(Value::as_array).into_iter().flatten();
        samples.any(|it| it.get("reason").and_then(Value::as_str) == Some(reason))
    };
    if order.path == "delayed/retry" && (waits("parked") || waits("unroutable")) {
        let text = "Some wait for a sink or destination. Unless it takes messages again, they come back here at once.";
        view.blocks.push(Block::Problem(text.to_owned()));
    }
    if order.path == "replay" {
        duplicates(visit, view, &plan).await?;
    }
    if order.path == "dead/discard" && plan.get("is_complete") == Some(&Value::Bool(false)) {
        let text = "There are too many to count. Discard them in parts: add a reason, a topic or a text of the error.";
        view.blocks.push(Block::Problem(text.to_owned()));
        return Ok(None);
    }
    Ok(Some((messages, digest(&plan))))
}

/// Returns the fields beside that of the reason: [`FILLED`].
fn fields(visit: &Visit<'_>, order: &Order, count: u64) -> Vec<Field> {
    let mut fields = Vec::new();
    if order.path == "pause" {
        fields.push(visit.field("for", "For, such as 30m; empty: until it is resumed"));
    }
    if order.has_plan && count > 1 {
        fields.push(visit.field("rate", "Most messages a second; empty: 1000"));
    }
    if !visit.query.get("to").is_empty() {
        let typed = visit.field("confirm_destination", "Type in the destination again");
        fields.push(Field { is_required: true, ..typed });
    }
    fields
}

fn menu(path: &str) -> &'static str {
    match path.split('/').next() {
        Some("dead") => "/dead",
        Some("delayed") => "/delayed",
        Some("inbox") => "/consumers",
        Some("jobs") => "/jobs",
        Some("replay") => "/replay",
        _ => "/controls",
    }
}

/// Shows a plan: what it does to the order of keys as sentences, the rest as facts.
fn show(view: &mut View, plan: &Value) {
    let mut facts = Vec::new();
    for (name, value) in plan.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            ("messages" | "action" | "is_complete" | "is_looked_up" | "may_arrive_twice" | "may_break_order", _)
            | (_, Value::Null | Value::Array(_)) => {}
            (_, Value::Object(parts)) => {
                facts.extend(parts.iter().map(|(part, value)| (format!("{}: {part}", label(name)), Cell::of(value))));
            }
            ("seconds", Value::Number(seconds)) => facts.push((fact(name), Cell::text(&format!("{seconds} s")))),
            (_, value) => facts.push((fact(name), Cell::of(value))),
        }
    }
    view.blocks.push(Block::Facts(facts));
    let number = |name: &str| plan.get(name).and_then(Value::as_u64).unwrap_or_default();
    let sentence =
        |count: u64, text: &str| (count > 0).then(|| format!("{} {text}", counted(count, "of them", "of them")));
    let effects = [
        (
            "Order",
            sentence(number("may_break_order"), "may go out behind later messages of its key, which do not wait."),
        ),
        ("Duplicates", sentence(number("may_arrive_twice"), "may have arrived before: an inbox does nothing then.")),
        (
            "The plan is not complete",
            (plan.get("is_complete") == Some(&Value::Bool(false)))
                .then(|| "Only the first 100,000 were counted. The order is for all that fit.".to_owned()),
        ),
    ];
    let effects = effects.into_iter().filter_map(|(title, text)| Some(Block::Text(title.to_owned(), text?)));
    view.blocks.extend(effects);
    if let Some(samples) = plan.get("samples") {
        let columns =
            ["id", "lane", "topic", "event_type", "reason", "attempts", "sent_at", "died_at", "holds_key", "error"];
        let title = "The first of them".to_owned();
        view.blocks.push(Block::Table(Table { title, ..super::pages::table(samples, &columns) }));
    }
}

/// The heading of a fact of a plan.
fn fact(name: &str) -> String {
    match name {
        "seconds" => "it takes at least".to_owned(),
        "waiting" => "later messages behind them".to_owned(),
        _ => label(name),
    }
}

/// Gives an order. Returns the page that shows it.
pub(super) async fn give(visit: &Visit<'_>, path: &str) -> Result<String, ApiRefusal> {
    let order = of(path)?;
    let refuse = |status, text: &str| Err((status, text.to_owned()));
    if let Some(lacks) = visit.lacks(Role::Operator, "operator") {
        return refuse(StatusCode::FORBIDDEN, &lacks);
    }
    let because = visit.query.get("because");
    if because.is_empty() {
        return refuse(StatusCode::UNPROCESSABLE_ENTITY, "nothing was ordered: a reason is needed, for the audit");
    }
    let Ok(once) = visit.query.get(ONCE).parse::<Uuid>() else {
        return refuse(StatusCode::BAD_REQUEST, "nothing was ordered: load the page of the plan first");
    };
    let to = href(menu(order.path), [("done", once.to_string().as_str())]);
    if !begin(once, &visit.caller.name) {
        return Ok(to);
    }
    let given = carry_out(visit, order, because).await;
    let mut known = GIVEN.lock();
    match given {
        Ok(Some(job)) => Ok(href(menu("jobs"), [("ordered", job.to_string().as_str())])),
        Ok(None) => {
            if let Some(given) = known.iter_mut().find(|it| it.once == once) {
                order.done.clone_into(&mut given.notice);
            }
            Ok(to)
        }
        // The order may have been given.
        Err(error @ (StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT, _)) => Err(error),
        Err(error) => {
            // It can be corrected, and sent again.
            known.retain(|it| it.once != once);
            Err(error)
        }
    }
}

/// Notes that a form was sent. Returns whether it is the first time.
fn begin(once: Uuid, caller: &str) -> bool {
    let mut given = GIVEN.lock();
    if given.iter().any(|it| it.once == once) {
        return false;
    }
    if given.len() >= REMEMBERED {
        given.pop_front();
    }
    let notice = "This form was sent before, and gives one order: look at Jobs and Audit.".to_owned();
    given.push_back(Given { once, caller: caller.to_owned(), notice });
    true
}

/// Returns the job of the order, if it is one.
async fn carry_out(visit: &Visit<'_>, order: &Order, because: &str) -> Result<Option<u64>, ApiRefusal> {
    let refuse = |text: &str| Err((StatusCode::UNPROCESSABLE_ENTITY, text.to_owned()));
    let parameters = parameters(visit);
    let mut request = Request { path: order.path.to_owned(), parameters };
    let messages = if order.has_plan {
        // The order is for the messages that the person saw.
        let parameters = request.parameters.iter().filter(|(name, _)| !FILLED.contains(&name.as_str()));
        let plan = Request { path: order.path.to_owned(), parameters: parameters.cloned().collect() };
        let plan = visit.ask_one(&plan).await?;
        let plan = plan.get("plan").unwrap_or(&Value::Null);
        let messages = plan.get("messages").and_then(Value::as_u64).unwrap_or_default();
        if messages > 0 && visit.query.get(SEEN) != digest(plan) {
            return refuse("nothing was ordered: the messages have changed since the plan. This is the new plan");
        }
        request.parameters.push(("yes".to_owned(), "true".to_owned()));
        messages
    } else {
        given_up(visit, order).await?
    };
    let typed: String = visit.query.get("count").chars().filter(char::is_ascii_digit).collect();
    if messages > 1 && typed != messages.to_string() {
        let typed = if typed.is_empty() { "no number" } else { &typed };
        return refuse(&format!("nothing was ordered: the order has {messages} messages, and {typed} was typed in"));
    }
    request.parameters.push(("because".to_owned(), because.to_owned()));
    let mut answers = visit.api.ask(&visit.caller, std::slice::from_ref(&request), true).await?;
    let answer = answers.pop().transpose()?.unwrap_or_default();
    Ok(answer.get("job").and_then(Value::as_u64))
}
