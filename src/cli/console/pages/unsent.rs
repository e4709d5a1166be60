//! Messages that are not sent: dead, delayed and pending ones, by groups and one by one.

use super::{
    ApiRefusal, Block, Cell, Filter, Link, Table, Value, View, Visit, href, orders, request, rows, table, text,
};

/// A state, and the orders for its messages.
pub(super) struct State {
    word: &'static str,
    title: &'static str,
    menu: &'static str,
    /// The column of the time that matters.
    time: &'static str,
    /// Each with the texts of its links: to all, and to what a filter matches.
    orders: &'static [(&'static str, &'static str, &'static str)],
    empty: &'static str,
}

pub(super) const DEAD: State = State {
    word: "dead",
    title: "Dead messages",
    menu: "/dead",
    time: "died_at",
    orders: &[
        ("dead/retry", "Retry all…", "Retry these…"),
        ("dead/release", "Release all their keys…", "Release the keys of these…"),
        ("dead/discard", "Discard all…", "Discard these…"),
    ],
    empty: "No message is dead.",
};

pub(super) const DELAYED: State = State {
    word: "delayed",
    title: "Delayed messages",
    menu: "/delayed",
    time: "due_at",
    orders: &[
        ("delayed/retry", "Publish all now…", "Publish these now…"),
        ("delayed/discard", "Take back all that a replay sends…", "Take back those that a replay sends…"),
    ],
    empty: "No message waits for a time, a key or a broker.",
};

pub(super) const PENDING: State = State {
    word: "pending",
    title: "Due messages",
    menu: "/",
    time: "enqueued_at",
    orders: &[],
    empty: "No message is due: relays have claimed all of them.",
};

pub(super) async fn view(visit: &Visit<'_>, state: &State) -> Result<View, ApiRefusal> {
    const NAMES: [&str; 4] = ["reason", "topic", "error", "lane"];
    let title = state.title.to_owned();
    let mut view = View { title, menu: state.menu, is_live: true, ..View::default() };
    let path = format!("/{}", state.word);
    let filter: Vec<_> = visit.in_address(&NAMES).into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let fields = vec![
        visit.field("reason", "Reason"),
        visit.field("topic", "Topic"),
        visit.field("error", "Text of the error"),
        visit.field("lane", "Lane"),
    ];
    view.blocks.push(Block::Filter(Filter { action: path.clone(), fields, submit: "Filter" }));
    let with = |name, value| filter.iter().copied().chain([(name, value)]).collect::<Vec<_>>();
    let list = format!("{}/list", state.word);
    let requests = [
        request(&list, &with("group_by", if state.word == "pending" { "topic" } else { "error" })),
        request(&list, &with("after", visit.query.get("after"))),
    ];
    let [all, found] = visit.answers(&mut view, requests).await?;
    let list = found.get("rows").unwrap_or(&Value::Null);
    if rows(list).next().is_some() {
        let which = if filter.is_empty() { vec![("all", "true")] } else { filter.clone() };
        let links = state.orders.iter().map(|(order, to_all, to_these)| {
            orders::link(order, if filter.is_empty() { to_all } else { to_these }, which.iter().copied())
        });
        view.blocks.push(Block::Orders(links.collect()));
        view.blocks.push(Block::Table(groups("In groups", &path, &all)));
    }
    let columns = ["id", "lane", "topic", "reason", "attempts", state.time, "holds_key", "error"];
    let next = found.get("next").and_then(Value::as_str);
    let more = next.map(|next| Link::to("Go on with the next ones", href(&path, with("after", next))));
    let empty = if filter.is_empty() { state.empty } else { "No message matches the filter." }.to_owned();
    view.blocks.push(Block::Table(Table { title: "One by one".to_owned(), more, empty, ..table(list, &columns) }));
    Ok(view)
}

/// Groups of unsent messages, each with a link to its messages.
pub(super) fn groups(title: &str, path: &str, answer: &Value) -> Table {
    let all = answer.get("rows").unwrap_or(&Value::Null);
    let columns = ["messages", "group", "first", "last", "example"];
    let mut table = Table { title: title.to_owned(), ..table(all, &columns) };
    for (row, group) in table.rows.iter_mut().zip(rows(all)) {
        let group = text(group, "group");
        // An error may be long: the beginning finds it.
        let beginning = |error: &str| error.chars().take(80).collect::<String>();
        let Some(cell) = row.get_mut(1) else { continue };
        let (name, value) = if path == "/pending" { ("topic", group) } else { ("reason", group) };
        cell.href = Some(match group.split_once(": ") {
            Some((reason, error)) => href(path, [("reason", reason), ("error", beginning(error).as_str())]),
            None => href(path, [(name, value)]),
        });
        cell.text = match group.trim_end_matches([':', ' ']) {
            "behind" => "behind: an earlier message of their key waits".to_owned(),
            text => Cell::text(text).text,
        };
    }
    table
}
