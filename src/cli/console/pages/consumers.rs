//! The consumers whose inbox is in this database.

use super::{ApiRefusal, Block, Cell, Link, Table, Value, View, Visit, number, orders, request, rows, table, text};

pub(super) async fn view(visit: &Visit<'_>) -> Result<View, ApiRefusal> {
    let title = "Consumers of this database's inbox".to_owned();
    let mut view = View { title, menu: "/consumers", is_live: true, ..View::default() };
    let requests = [request("inbox/list", &[]), request("inbox/dead", &[]), request("inbox/retries", &[])];
    let [consumers, dead, retries] = visit.answers(&mut view, requests).await?;
    let given_up: u64 = rows(&consumers).map(|consumer| number(consumer, "dead")).sum();
    if rows(&consumers).next().is_some() {
        view.tone = if given_up == 0 { "good" } else { "bad" };
        view.verdict = Some(match given_up {
            0 => "No consumer has given up a message.".to_owned(),
            1 => "One message was given up by its consumer.".to_owned(),
            many => format!("{many} messages were given up by their consumers."),
        });
    }
    let mut list = table(&consumers, &["consumer", "processed", "last_at", "dead", "last_dead_at", "remembers_since"]);
    list.columns.insert(1, "order".to_owned());
    for (row, consumer) in list.rows.iter_mut().zip(rows(&consumers)) {
        let name = text(consumer, "consumer");
        let link = orders::link("inbox/retry", "Retry all dead…", [("consumer", name), ("all", "true")]);
        row.insert(1, if number(consumer, "dead") > 0 { link.into() } else { Cell::default() });
    }
    let empty =
        "No consumer has its inbox in this database. Consumers elsewhere have a console of their own.".to_owned();
    view.blocks.push(Block::Table(Table { title: "Consumers".to_owned(), empty, ..list }));
    let columns = ["consumer", "message_id", "topic", "reason", "attempts", "died_at", "error"];
    let mut given_up = table(&dead, &columns);
    given_up.columns.insert(1, "order".to_owned());
    for (row, message) in given_up.rows.iter_mut().zip(rows(&dead)) {
        let is_ordered = rows(&retries).any(|it| {
            text(it, "state") != "done"
                && ["consumer", "message_id"].iter().all(|name| text(it, name) == text(message, name))
        });
        row.insert(1, if is_ordered { Cell::text("ordered").toned("wait") } else { retry(message).into() });
    }
    let title = "Messages that they gave up".to_owned();
    view.blocks.push(Block::Table(Table { title, ..given_up }));
    if rows(&retries).next().is_some() {
        let columns = [
            "retry",
            "consumer",
            "message_id",
            "state",
            "processed",
            "failed",
            "ordered_at",
            "ended_at",
            "actor",
            "reason",
        ];
        view.blocks.push(Block::Table(Table { title: "Ordered retries".to_owned(), ..table(&retries, &columns) }));
    }
    Ok(view)
}

/// A link that lets a consumer try a message again.
pub(super) fn retry(message: &Value) -> Link {
    let parameters = [("consumer", text(message, "consumer")), ("message", text(message, "message_id"))];
    orders::link("inbox/retry", "Retry…", parameters)
}
