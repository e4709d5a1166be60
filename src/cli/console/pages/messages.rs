//! Finding messages, and the queues of keys.

use outbox_core::Uuid;

use super::{
    ApiRefusal, Block, Cell, Field, Filter, Link, Table, Value, View, Visit, counted, href, message, number, order_of,
    request, rows, table, text, tone,
};

/// Most rows that a page looks at: half a second where all of them have to be counted out.
const BUDGET: &str = "40000";

pub(super) async fn view(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    const NAMES: [&str; 7] = ["topic", "key", "type", "state", "since", "until", "below"];
    let one = visit.query.get("message");
    if !one.is_empty() {
        return message::view(visit, one).await;
    }
    let found_by = visit.query.get("find");
    if found_by.parse::<Uuid>().is_ok() {
        return message::view(visit, found_by).await;
    }
    let mut view = View { title: "Messages".to_owned(), menu: "/messages", is_live: true, ..View::default() };
    if !found_by.is_empty() {
        view.title = format!("Messages with the key {found_by}");
    }
    let key = if found_by.is_empty() { visit.query.get("key") } else { found_by };
    let fields = vec![
        visit.field("message", "Number or UUID"),
        visit.field("topic", "Topic"),
        Field { value: key.to_owned(), ..visit.field("key", "Key") },
        visit.field("type", "Type"),
        visit.choice("state", "State", &["pending", "claimed", "delayed", "dead", "sent"]),
        visit.field("since", "Since, such as 2h"),
        visit.field("until", "Until, such as 1h"),
    ];
    view.blocks.push(Block::Filter(Filter { action: "/messages".to_owned(), fields, submit: "Find" }));
    let mut parameters = visit.in_address(&NAMES);
    parameters.iter_mut().filter(|(name, _)| *name == "key").for_each(|(_, value)| *value = key);
    parameters.push(("budget", BUDGET));
    let [found] = visit.answers(&mut view, [request("messages/list", &parameters)]).await?;
    if found.is_null() {
        return Ok(view);
    }
    let list = found.get("rows").unwrap_or(&Value::Null);
    let columns = ["id", "enqueued_at", "topic", "event_type", "state", "reason", "attempts", "error"];
    let more = found.get("next").and_then(Value::as_u64).map(|next| {
        let next = next.to_string();
        let query = parameters.iter().copied().filter(|(name, _)| !matches!(*name, "below" | "budget"));
        let query = query.chain([("below", next.as_str())]);
        Link::to("Go on with older messages", href("/messages", query))
    });
    let is_number = !found_by.is_empty() && found_by.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && rows(list).next().is_none() {
        return message::view(visit, found_by).await;
    }
    view.verdict = Some(looked(&found, list, !key.is_empty() && visit.query.get("topic").is_empty()));
    let empty =
        if more.is_some() { "None of those that were looked at fits: go on below." } else { "No message fits." };
    let link = if rows(list).next().is_none() { more.clone() } else { None };
    view.blocks.push(Block::Table(Table { more, empty: empty.to_owned(), ..table(list, &columns) }));
    view.blocks.extend(link.map(|link| Block::Orders(vec![link])));
    Ok(view)
}

/// How far the look went back.
fn looked(found: &Value, list: &Value, is_of_some_topics: bool) -> String {
    let looked = counted(number(found, "looked_at"), "message was looked at", "messages were looked at");
    let shown = rows(list).count() as u64;
    let oldest = rows(list).last().map(|row| Cell::of(row.get("enqueued_at").unwrap_or(&Value::Null)).text);
    match (found.get("next").and_then(Value::as_u64), oldest) {
        (Some(_), Some(oldest)) => {
            format!("The newest {} that fit, back to {oldest}. Go on below.", counted(shown, "message", "messages"))
        }
        (Some(next), None) => format!("{looked}, back to number {next}, and none fits. Go on below."),
        (None, _) if is_of_some_topics => format!(
            "{looked}, of the topics of the newest messages and of some that wait or are dead. Give the topic to find others."
        ),
        (None, _) => format!("{looked}: all that fit are here."),
    }
}

/// Most keys that are listed.
const MOST_KEYS: &str = "100";

pub(super) async fn keys(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let mut view =
        View { title: "Keys whose messages wait".to_owned(), menu: "/keys", is_live: true, ..View::default() };
    let limit = [("limit", MOST_KEYS)];
    let [keys] = visit.answers(&mut view, [request("keys/blocked", &limit)]).await?;
    let behind = rows(&keys).filter(|key| number(key, "messages") > 1).count() as u64;
    let waiting = rows(&keys).count() as u64;
    view.verdict = (waiting > 0).then(|| {
        let keys = counted(waiting, "key waits", "keys wait");
        let more = if waiting.to_string() == MOST_KEYS { "More than " } else { "" };
        format!(
            "{more}{keys}; in {behind} of them later messages wait behind the first. Keys are hidden until revealed."
        )
    });
    let columns = ["messages", "id", "lane", "topic", "reason", "attempts", "due_at", "died_at", "error"];
    let empty = "No key waits.".to_owned();
    let mut table = Table { title: "By the first message of each".to_owned(), empty, ..table(&keys, &columns) };
    for (row, key) in table.rows.iter_mut().zip(rows(&keys)) {
        let id = number(key, "id").to_string();
        if let Some(cell) = row.first_mut() {
            cell.href = Some(href("/key", [("message", id.as_str())]));
        }
    }
    view.blocks.push(Block::Filter(Filter {
        action: "/key".to_owned(),
        fields: vec![
            Field { is_required: true, ..visit.field("topic", "Topic") },
            Field { is_required: true, ..visit.field("key", "Key") },
        ],
        submit: "Show the key",
    }));
    view.blocks.push(Block::Table(table));
    Ok(view)
}

pub(super) async fn key(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let parameters = visit.in_address(&["message", "topic", "key", "after"]);
    let title = match parameters.as_slice() {
        [(_, ""), (_, topic), (_, key), _] => format!("The queue of the key {key} of {topic}"),
        [(_, id), ..] => format!("The queue of the key of message {id}"),
        _ => String::new(),
    };
    let mut view = View { title: Cell::text(&title).text, menu: "/keys", is_live: true, ..View::default() };
    let [id, topic, key] = ["message", "topic", "key"].map(|name| visit.query.get(name));
    if id.is_empty() && (topic.is_empty() || key.is_empty()) {
        view.blocks
            .push(Block::Problem("A key belongs to a topic: give both, or find the key in all topics.".to_owned()));
        let link = Link::to("Find its messages in all topics", href("/messages", [("find", key)]));
        view.blocks.push(Block::Orders(vec![link]));
        return Ok(view);
    }
    let [key] = visit.answers(&mut view, [request("keys/show", &parameters)]).await?;
    if key.is_null() {
        return Ok(view);
    }
    let list = key.get("rows").unwrap_or(&Value::Null);
    let head = key.get("first").filter(|first| !first.is_null());
    let first = rows(list).next().unwrap_or(&Value::Null);
    view.verdict = Some(match head {
        Some(head) => format!("Message {} is the first: {}", number(head, "id"), text(head, "why")),
        None if first.is_null() => "No message of this key is unsent.".to_owned(),
        None => "No message of this key holds up a later one.".to_owned(),
    });
    view.tone = if head.is_none() { "good" } else { tone(text(first, "state")) };
    // The count has the delayed ones.
    let behind = number(&key, "waiting").saturating_sub(u64::from(text(first, "state") == "delayed"));
    view.blocks.extend(consequences(first, behind));
    let columns = ["id", "topic", "lane", "state", "reason", "attempts", "due_at", "died_at", "error"];
    let next = key.get("next").and_then(Value::as_str);
    let more = next.map(|next| {
        let query = parameters.iter().copied().filter(|(name, _)| *name != "after").chain([("after", next)]);
        Link::to("Go on with later ones", href("/key", query))
    });
    let title = "In the order in which they go out".to_owned();
    view.blocks.push(Block::Table(Table { title, more, ..table(list, &columns) }));
    Ok(view)
}

/// The orders for the first message of a key, and what each one does to the order of the key.
fn consequences(first: &Value, behind: u64) -> Vec<Block> {
    let id = number(first, "id");
    let holds = first.get("holds_key").and_then(Value::as_bool).unwrap_or_default();
    let followers = match behind {
        0 => "later messages".to_owned(),
        _ => counted(behind, "later message", "later messages"),
    };
    let order = |path: &str, name: &str| order_of(path, name, "message", id);
    let rows = match text(first, "state") {
        "dead" => vec![
            (
                order("dead/retry", "Retry…"),
                if holds {
                    format!("It goes out first, then {followers}: the order is kept.")
                } else {
                    "It goes out after later messages of the key that were sent meanwhile.".to_owned()
                },
            ),
            (
                order("dead/release", "Release…"),
                if holds {
                    format!("It stays dead, and the way is free for {followers}; a later retry sends it behind them.")
                } else {
                    "Nothing changes: it holds up no message.".to_owned()
                },
            ),
            (
                order("dead/discard", "Discard…"),
                if holds {
                    format!("Its contents are deleted for good, and the way is free for {followers}.")
                } else {
                    "Its contents are deleted for good.".to_owned()
                },
            ),
        ],
        "delayed" => vec![(
            order("delayed/retry", "Publish now…"),
            if holds {
                format!("It is tried now. Once it is confirmed, it is the turn of {followers}: the order is kept.")
            } else {
                "It is tried now.".to_owned()
            },
        )],
        _ => return Vec::new(),
    };
    let rows = rows.into_iter().map(|(link, effect)| vec![link.into(), Cell::text(&effect)]).collect();
    let columns = ["order", "what it does to the key"].map(str::to_owned).to_vec();
    let title = format!("Orders for message {id}");
    vec![Block::Table(Table { title, columns, rows, ..Table::default() })]
}
