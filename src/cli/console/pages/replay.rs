//! Sending sent messages again, and who would do their work twice.

use super::{ApiRefusal, Block, Cell, Filter, Table, Value, View, Visit, counted, moment, number, request, rows, text};

pub(super) fn view(visit: &Visit<'_>) -> View {
    let fields = vec![
        visit.field("message", "Number or UUID"),
        visit.field("topic", "Topic"),
        visit.field("lane", "Lane"),
        visit.field("since", "Sent since, such as 2h"),
        visit.field("until", "Sent until"),
        visit.field("to", "To another destination, such as kafka/repair"),
        visit.field("rate", "Messages a second"),
    ];
    View {
        title: "Send sent messages again".to_owned(),
        menu: "/replay",
        verdict: Some(
            "First comes the plan: how many, how old, and which consumers would do their work twice.".to_owned(),
        ),
        blocks: vec![Block::Filter(Filter { action: "/order/replay".to_owned(), fields, submit: "Show the plan" })],
        ..View::default()
    }
}

/// Adds to the plan of a replay who would do the work of its messages twice.
pub(in crate::cli::console) async fn duplicates(
    visit: &Visit<'_>,
    view: &mut View,
    plan: &Value,
) -> Result<(), ApiRefusal> {
    let id = visit.query.get("message");
    let [consumers, outcomes] = if id.is_empty() {
        let [consumers] = visit.answers(view, [request("inbox/list", &[])]).await?;
        [consumers, Value::Null]
    } else {
        visit.answers(view, [request("inbox/list", &[]), request("inbox/show", &[("message", id)])]).await?
    };
    let oldest = text(plan, "oldest");
    let row = |consumer: &Value| {
        let name = text(consumer, "consumer");
        let since = text(consumer, "remembers_since");
        let knows = moment(since).zip(moment(oldest)).is_some_and(|(since, oldest)| since <= oldest);
        let outcome = rows(&outcomes).find(|it| text(it, "consumer") == name).map(|it| text(it, "outcome"));
        let (answer, tone) = match (outcome, knows) {
            (Some("processed"), _) => ("no: it has processed the message, and skips it", "good"),
            (Some(_), _) => ("no: it has given the message up, and skips it; let it retry it instead", "wait"),
            (None, true) if id.is_empty() => {
                ("no: it skips what it has processed, and does the rest for the first time", "good")
            }
            (None, true) => ("no: it has not processed it, and does it for the first time", "good"),
            (None, false) => ("perhaps: whatever it processed before that time, it would do again", "wait"),
        };
        let processed = Cell::of(&Value::from(number(consumer, "processed")));
        vec![Cell::text(name), processed, Cell::of(&Value::from(since)), Cell::text(answer).toned(tone)]
    };
    view.blocks.push(Block::Table(Table {
        title: "Who would do it twice?".to_owned(),
        columns: ["consumer", "has processed, of all topics", "remembers since", "twice?"].map(str::to_owned).to_vec(),
        rows: rows(&consumers).map(row).collect(),
        empty: "No consumer has its inbox in this database.".to_owned(),
        ..Table::default()
    }));
    let text_of_others = "Consumers whose inbox is in another database are not listed: ask how long theirs remember.";
    view.blocks.push(Block::Text("Other consumers".to_owned(), text_of_others.to_owned()));
    let workers = rows(plan.get("worker_lanes").unwrap_or(&Value::Null)).count();
    if workers > 0 {
        let text = format!(
            "{} of workers are left out unless one is named: without an inbox, each effect would happen again.",
            counted(workers, "lane", "lanes")
        );
        view.blocks.push(Block::Text("Workers".to_owned(), text));
    }
    if number(plan, "messages") > 0
        && !text(plan, "to").is_empty()
        && plan.get("is_looked_up") == Some(&Value::Bool(false))
    {
        let text = "This console has no configuration of the sink, so the broker was not asked for the destination.";
        view.blocks.push(Block::Text("The destination is not checked".to_owned(), text.to_owned()));
    }
    Ok(())
}
