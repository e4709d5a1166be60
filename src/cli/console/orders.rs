//! Orders: a plan, a reason, and for more than one message their number typed in.

use axum::http::StatusCode;
use serde_json::Value;

use super::{
    ApiRefusal, Request, Visit,
    view::{Block, Cell, Confirm, Link, Table, View, command, grouped, href},
};

/// An order, and how it is shown.
struct Order {
    path: &'static str,
    title: &'static str,
    submit: &'static str,
    /// What a person should know before.
    warning: Option<&'static str>,
    /// Whether it has a plan; the others do one thing.
    has_plan: bool,
}

const fn planned(path: &'static str, title: &'static str, submit: &'static str, warning: Option<&'static str>) -> Order {
    Order { path, title, submit, warning, has_plan: true }
}

const fn single(path: &'static str, title: &'static str, submit: &'static str, warning: Option<&'static str>) -> Order {
    Order { path, title, submit, warning, has_plan: false }
}

const ORDERS: [Order; 9] = [
    planned("dead/retry", "Retry dead messages", "Retry", None),
    planned(
        "dead/release",
        "Release the keys of dead messages",
        "Release",
        Some("Later messages of these keys go out without the dead ones, which stay dead: their order is given up."),
    ),
    planned("dead/discard", "Discard dead messages", "Discard", Some("Their contents are deleted for good.")),
    planned("delayed/retry", "Publish waiting messages now", "Publish now", None),
    planned("delayed/discard", "Take waiting messages of a replay back", "Take back", None),
    planned(
        "replay",
        "Send sent messages again",
        "Send again",
        Some("A consumer whose inbox has forgotten a message does its work twice."),
    ),
    single("pause", "Pause", "Pause", Some("Messages wait until it is resumed.")),
    single("resume", "Resume", "Resume", None),
    single("jobs/stop", "Stop a job", "Stop", Some("What it has done stays done.")),
];

fn of(path: &str) -> Result<&'static Order, ApiRefusal> {
    let order = path.strip_prefix("/order/").and_then(|path| ORDERS.iter().find(|order| order.path == path));
    order.ok_or_else(|| (StatusCode::NOT_FOUND, "there is no such order".to_owned()))
}

/// A link to the plan of an order.
pub(super) fn link<'a>(path: &str, text: &str, query: impl IntoIterator<Item = (&'a str, &'a str)>) -> Link {
    Link { text: text.to_owned(), href: href(&format!("/order/{path}"), query), disabled: None }
}

/// The parameters of the command.
fn parameters(visit: &Visit<'_>) -> Vec<(String, String)> {
    let own = ["form_token", "because", "yes", "count"];
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
        let mut answers = visit.api.ask(&visit.caller, std::slice::from_ref(&request), false).await?;
        match answers.pop() {
            Some(Ok(answer)) => {
                let plan = answer.get("plan").unwrap_or(&Value::Null);
                count = plan.get("messages").and_then(Value::as_u64);
                show(&mut view, plan);
            }
            Some(Err((_, problem))) => {
                view.blocks.push(Block::Problem(problem));
                return Ok(view);
            }
            None => {}
        }
        if count == Some(0) {
            view.verdict = Some("There is nothing to do.".to_owned());
            return Ok(view);
        }
    } else {
        let facts = request.parameters.iter().map(|(name, value)| (name.replace('_', " "), Cell::text(value)));
        view.blocks.push(Block::Facts(facts.collect()));
    }
    let mut shown = request.clone();
    if order.has_plan {
        shown.parameters.push(("yes".to_owned(), "true".to_owned()));
    }
    shown.parameters.push(("because".to_owned(), "…".to_owned()));
    view.commands = vec![command(&shown)];
    view.blocks.push(Block::Confirm(Confirm {
        action: path.to_owned(),
        hidden: request.parameters,
        count: count.filter(|count| *count > 1),
        submit: match count {
            Some(count) => {
                let messages = if count == 1 { "message" } else { "messages" };
                format!("{} {} {messages}", order.submit, grouped(&count.to_string()))
            }
            None => order.submit.to_owned(),
        },
        warning: order.warning.map(str::to_owned),
        disabled: visit.no_orders(),
    }));
    Ok(view)
}

fn menu(path: &str) -> &'static str {
    match path.split('/').next() {
        Some("dead") => "/dead",
        Some("delayed") => "/delayed",
        Some("jobs") => "/jobs",
        Some("replay") => "/replay",
        _ => "/controls",
    }
}

/// Shows a plan.
fn show(view: &mut View, plan: &Value) {
    let mut facts = Vec::new();
    for (name, value) in plan.as_object().into_iter().flatten() {
        match value {
            Value::Null | Value::Array(_) => {}
            Value::Object(parts) => {
                let name = name.replace('_', " ");
                facts.extend(parts.iter().map(|(part, value)| (format!("{name}: {part}"), Cell::of(value))));
            }
            value => facts.push((name.replace('_', " "), Cell::of(value))),
        }
    }
    view.blocks.push(Block::Facts(facts));
    if let Some(samples) = plan.get("samples") {
        let columns = ["id", "lane", "topic", "reason", "attempts", "enqueued_at", "died_at", "holds_key", "error"];
        view.blocks.push(Block::Table(Table { title: "The first of them".to_owned(), ..super::pages::table(samples, &columns) }));
    }
}

/// Gives an order. Returns the page that shows it.
pub(super) async fn give(visit: &Visit<'_>, path: &str) -> Result<String, ApiRefusal> {
    let order = of(path)?;
    let refuse = |text: &str| Err((StatusCode::UNPROCESSABLE_ENTITY, text.to_owned()));
    let because = visit.query.get("because");
    if because.is_empty() {
        return refuse("nothing was ordered: a reason is needed, for the audit");
    }
    let parameters = parameters(visit);
    let mut request = Request { path: order.path.to_owned(), parameters };
    if order.has_plan {
        // What is ordered must be what was seen.
        let mut answers = visit.api.ask(&visit.caller, std::slice::from_ref(&request), false).await?;
        let plan = answers.pop().transpose()?.unwrap_or_default();
        let messages = plan.pointer("/plan/messages").and_then(Value::as_u64).unwrap_or_default();
        let typed: String = visit.query.get("count").chars().filter(char::is_ascii_digit).collect();
        if messages > 1 && typed != messages.to_string() {
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
        None if order.path == "jobs/stop" => "/jobs".to_owned(),
        None => "/controls".to_owned(),
    })
}
