//! Orders: a plan, a reason, and for more than one message their number typed in.

use std::collections::VecDeque;

use axum::http::StatusCode;
use outbox_core::Uuid;
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    ApiRefusal, Request, Role, Visit,
    pages::{counted, duplicates, label, sentence},
    view::{Block, Cell, Confirm, Field, Link, Table, View, command, href},
};

/// The name of the field that makes a form one order, however often it is sent.
const ONCE: &str = "once";
/// The orders that are remembered.
const REMEMBERED: usize = 10_000;

/// The forms that were sent: a double click, or the way back, gives no second order.
static GIVEN: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// An order, and how it is shown.
struct Order {
    path: &'static str,
    title: &'static str,
    /// The text of its button; `{}` stands for its messages.
    submit: &'static str,
    /// What a person should know before.
    warning: Option<&'static str>,
    /// Whether it has a plan; the others do one thing.
    has_plan: bool,
}

const fn planned(
    path: &'static str,
    title: &'static str,
    submit: &'static str,
    warning: Option<&'static str>,
) -> Order {
    Order { path, title, submit, warning, has_plan: true }
}

const fn single(path: &'static str, title: &'static str, submit: &'static str, warning: Option<&'static str>) -> Order {
    Order { path, title, submit, warning, has_plan: false }
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
    single("pause", "Pause", "Pause", Some("Its messages wait meanwhile; other messages go on.")),
    single("resume", "Resume", "Resume", None),
    single(
        "inbox/retry",
        "Let a consumer retry what it gave up",
        "Retry",
        Some("A running consumer takes it up, behind newer messages of the key."),
    ),
    single("jobs/stop", "Stop a job", "Stop", Some("What it has done stays done.")),
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
    let own = ["form_token", ONCE, "because", "yes", "count"];
    let given = visit.query.0.iter().filter(|(name, value)| !own.contains(&name.as_str()) && !value.trim().is_empty());
    given.cloned().collect()
}

/// The page of an order: its plan and its form.
pub(super) async fn view(visit: &Visit<'_>, path: &str) -> Result<View, ApiRefusal> {
    let order = of(path)?;
    let request = Request { path: order.path.to_owned(), parameters: parameters(visit) };
    let mut view = View { title: order.title.to_owned(), menu: menu(order.path), ..View::default() };
    let mut count = None;
    if order.has_plan {
        count = planned_messages(visit, order, &request, &mut view).await?;
        if count.is_none() {
            view.blocks.push(Block::Orders(vec![Link::to("Back", menu(order.path))]));
            return Ok(view);
        }
    } else {
        let facts = request.parameters.iter().map(|(name, value)| (label(name), Cell::text(value)));
        view.blocks.push(Block::Facts(facts.collect()));
    }
    let mut shown = request.clone();
    if order.has_plan {
        shown.parameters.push(("yes".to_owned(), "true".to_owned()));
    }
    shown.parameters.push(("because".to_owned(), "…".to_owned()));
    view.commands.push(command(&shown));
    let messages = count.map(|count| counted(count, "message", "messages")).unwrap_or_default();
    view.blocks.push(Block::Confirm(Confirm {
        action: format!("/order/{path}"),
        hidden: [(ONCE.to_owned(), Uuid::now_v7().to_string())].into_iter().chain(request.parameters).collect(),
        fields: fields(visit, order, count),
        because: visit.query.get("because").to_owned(),
        count: count.filter(|count| *count > 1),
        submit: order.submit.replace("{}", &messages),
        warning: order.warning.map(str::to_owned),
        is_final: order.path == "dead/discard",
        disabled: visit.lacks(Role::Operator, "operator"),
        ..Confirm::default()
    }));
    Ok(view)
}

/// Shows the plan of an order. Returns the number of its messages; `None`: there is nothing to do, or a problem.
async fn planned_messages(
    visit: &Visit<'_>,
    order: &Order,
    request: &Request,
    view: &mut View,
) -> Result<Option<u64>, ApiRefusal> {
    let plan = match visit.ask_one(request).await {
        Ok(answer) => answer.get("plan").cloned().unwrap_or_default(),
        Err((StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY, problem)) => {
            view.blocks.push(Block::Problem(sentence(&problem)));
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
    Ok(Some(messages))
}

/// What may be given beside the reason. What was given before is hidden in the form.
fn fields(visit: &Visit<'_>, order: &Order, count: Option<u64>) -> Vec<Field> {
    let field =
        |name: &'static str, label: &'static str| visit.query.get(name).is_empty().then(|| visit.field(name, label));
    let mut fields = Vec::new();
    if order.path == "pause" {
        fields.extend(field("for", "For, such as 30m; empty: until it is resumed"));
    }
    if count > Some(1) {
        fields.extend(field("rate", "Most messages a second; empty: 1000"));
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
                .then(|| "There are more messages than one plan reads. Order again for the rest.".to_owned()),
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
    let because = visit.query.get("because");
    if because.is_empty() {
        let text = "nothing was ordered: a reason is needed, for the audit";
        return Err((StatusCode::UNPROCESSABLE_ENTITY, text.to_owned()));
    }
    let once = visit.query.get(ONCE);
    if !once.is_empty() && !begin(once) {
        return Ok(href(menu(order.path), [("done", "before")]));
    }
    let given = carry_out(visit, order, because).await;
    if given.as_ref().is_err_and(|(status, _)| status.is_client_error()) {
        // It can be corrected, and sent again.
        GIVEN.lock().retain(|it| it != once);
    }
    given
}

/// Notes that a form was sent. Returns whether it is the first time.
fn begin(once: &str) -> bool {
    let mut given = GIVEN.lock();
    if given.iter().any(|it| it == once) {
        return false;
    }
    if given.len() >= REMEMBERED {
        given.pop_front();
    }
    given.push_back(once.to_owned());
    true
}

async fn carry_out(visit: &Visit<'_>, order: &Order, because: &str) -> Result<String, ApiRefusal> {
    let refuse = |text: &str| Err((StatusCode::UNPROCESSABLE_ENTITY, text.to_owned()));
    let parameters = parameters(visit);
    let mut request = Request { path: order.path.to_owned(), parameters };
    if order.has_plan {
        // What is ordered must be what was seen.
        let plan = Request {
            path: order.path.to_owned(),
            parameters: request.parameters.iter().filter(|(name, _)| name != "confirm_destination").cloned().collect(),
        };
        let plan = visit.ask_one(&plan).await?;
        let messages = plan.pointer("/plan/messages").and_then(Value::as_u64).unwrap_or_default();
        let typed: String = visit.query.get("count").chars().filter(char::is_ascii_digit).collect();
        if (messages > 1 || !typed.is_empty()) && typed != messages.to_string() {
            return refuse(&format!(
                "nothing was ordered: the plan has {messages} messages now, and {} was typed in. Look at the plan again",
                if typed.is_empty() { "no number" } else { &typed }
            ));
        }
        request.parameters.push(("yes".to_owned(), "true".to_owned()));
    }
    request.parameters.push(("because".to_owned(), because.to_owned()));
    let mut answers = visit.api.ask(&visit.caller, std::slice::from_ref(&request), true).await?;
    let answer = answers.pop().transpose()?.unwrap_or_default();
    Ok(match answer.get("job").and_then(Value::as_u64) {
        Some(job) => href("/jobs", [("ordered", job.to_string().as_str())]),
        None if order.has_plan => href(menu(order.path), [("done", "nothing")]),
        None => href(menu(order.path), [("done", order.path)]),
    })
}
