//! The parts of pages.

use outbox_relay::operate::shown::{shown, span};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::Request;

/// A page.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Its heading.
    pub(super) title: String,
    /// The path of the entry of the menu that it belongs to.
    pub(super) menu: &'static str,
    /// The first sentence.
    pub(super) verdict: Option<String>,
    /// `good`, `wait`, `bad`, or empty.
    pub(super) tone: &'static str,
    /// The commands that give the same answers.
    pub(super) commands: Vec<String>,
    /// Whether it is loaded again now and then.
    pub(super) is_live: bool,
    pub(super) blocks: Vec<Block>,
}

impl View {
    /// Adds a problem, once.
    pub(super) fn problem(&mut self, problem: &str) {
        let problem = sentence(problem);
        if !self.blocks.iter().any(|block| matches!(block, Block::Problem(known) if *known == problem)) {
            self.blocks.push(Block::Problem(problem));
        }
    }

    /// The page with its sentences as they may be shown: errors and keys in them are of anybody.
    pub(super) fn safe(mut self) -> Self {
        self.title = shown(&self.title);
        self.verdict = self.verdict.map(|verdict| shown(&verdict));
        for block in &mut self.blocks {
            match block {
                Block::Problem(text) | Block::Notice(text) | Block::Text(_, text) => *text = shown(text),
                Block::Finding(it) => it.sentences.iter_mut().for_each(|text| *text = shown(text)),
                _ => {}
            }
        }
        self
    }

    /// The page as Markdown, for an incident: what was seen, and when.
    pub(super) fn markdown(&self) -> String {
        let now = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let mut text = format!("## {}\n\n{}\n", plain(&self.title), now.format(&Rfc3339).unwrap_or_default());
        if let Some(verdict) = &self.verdict {
            text.extend(["\n**", &plain(verdict), "**\n"]);
        }
        for block in &self.blocks {
            text += &block.markdown();
        }
        text.extend(["\n```sh\n", &self.commands.join("\n"), "\n```\n"]);
        text
    }
}

/// A text with a capital at its beginning and a full stop at its end.
pub(super) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let stop = if text.ends_with(['.', ':']) { "" } else { "." };
    format!("{first}{}{stop}", letters.as_str())
}

/// A text that Markdown shows as it is, in a cell of a table, too.
fn plain(text: &str) -> String {
    let escaped = |c: char| if "\\`*_|<>[]#".contains(c) { vec!['\\', c] } else { vec![c] };
    text.chars().flat_map(escaped).collect()
}

impl Block {
    fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            cells.fold("|".to_owned(), |line, cell| line + " " + &plain(cell) + " |") + "\n"
        };
        match self {
            Self::Problem(text) | Self::Notice(text) => format!("\n{}\n", plain(text)),
            Self::Text(title, text) => format!("\n{}: {}\n", plain(title), plain(text)),
            Self::Finding(it) => format!("\n- {}: {}\n", plain(&it.title), plain(&it.sentences.join(" "))),
            Self::Facts(facts) => {
                let facts = facts.iter().map(|(name, cell)| format!("- {}: {}\n", plain(name), plain(cell.full())));
                format!("\n{}", facts.collect::<String>())
            }
            Self::Flow(steps) => {
                let steps = steps.iter().map(|it| format!("- {}: {}\n", plain(&it.name), plain(&it.count.text)));
                format!("\n{}", steps.collect::<String>())
            }
            Self::Events(events) => {
                let events = events.iter().map(|it| format!("- {} {}\n", it.at.full(), plain(&it.what)));
                format!("\n{}", events.collect::<String>())
            }
            Self::Table(table) if !table.rows.is_empty() => {
                let head = line(&mut table.columns.iter().map(String::as_str));
                let rule = "|---".repeat(table.columns.len()) + "|\n";
                let rows = table.rows.iter().map(|row| line(&mut row.iter().map(Cell::full)));
                format!("\n{}\n\n{head}{rule}{}", plain(&table.title), rows.collect::<String>())
            }
            // Contents are for those alone who have revealed them.
            Self::Table(_) | Self::Filter(_) | Self::Orders(_) | Self::Confirm(_) | Self::Code(..) => String::new(),
        }
    }
}

/// A part of a page.
#[derive(Debug)]
pub(super) enum Block {
    /// Names and values.
    Facts(Vec<(String, Cell)>),
    /// Rows.
    Table(Table),
    /// The way of messages through the outbox.
    Flow(Vec<Step>),
    /// The life of a message.
    Events(Vec<Event>),
    /// A form that leads to a page.
    Filter(Filter),
    /// Orders, as links to their plans.
    Orders(Vec<Link>),
    /// A form that gives an order.
    Confirm(Confirm),
    /// A heading and a sentence.
    Text(String, String),
    /// A heading and a text of several lines.
    Code(String, String),
    /// A finding of the doctor.
    Finding(Finding),
    /// The outcome of an order, as a sentence.
    Notice(String),
    /// An error, as a sentence.
    Problem(String),
}

/// Rows under their columns.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Whether its question has failed.
    pub(super) is_unknown: bool,
    /// The sentence in place of rows.
    pub(super) empty: String,
    /// The next page.
    pub(super) more: Option<Link>,
}

impl Table {
    /// The columns, and whether they have numbers.
    pub(super) fn heads(&self) -> impl Iterator<Item = (&str, bool)> {
        let is_number = |at: usize| self.rows.iter().any(|row| row.get(at).is_some_and(|cell| cell.tone == "number"));
        self.columns.iter().enumerate().map(move |(at, column)| (column.as_str(), is_number(at)))
    }
}

/// A text, with what it leads to.
#[derive(Debug, Clone, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) href: Option<String>,
    /// `number`, `code`, `good`, `wait`, `bad`, or empty.
    pub(super) tone: &'static str,
    /// The time that the text tells relative to now.
    pub(super) time: Option<String>,
}

/// A link.
#[derive(Debug, Clone, Default)]
pub(super) struct Link {
    pub(super) text: String,
    /// A path below the outbox's first page, or an address elsewhere.
    pub(super) href: String,
    pub(super) is_elsewhere: bool,
}

impl Link {
    pub(super) fn to(text: &str, href: impl Into<String>) -> Self {
        Self { text: text.to_owned(), href: href.into(), is_elsewhere: false }
    }
}

impl From<Link> for Cell {
    fn from(link: Link) -> Self {
        Self { text: link.text, href: Some(link.href), ..Self::default() }
    }
}

/// A finding of the doctor.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) tone: &'static str,
    pub(super) title: String,
    pub(super) sentences: Vec<String>,
    /// The page that does the same as the command.
    pub(super) link: Option<Link>,
    /// The command of its fix; empty: there is none.
    pub(super) command: String,
    pub(super) run_in: &'static str,
}

/// A station of the flow.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) count: Cell,
    pub(super) note: String,
    pub(super) is_sink: bool,
    /// Whether messages wait there in place of going on.
    pub(super) is_beside: bool,
}

impl Step {
    pub(super) fn new(name: &str, count: Cell, note: String) -> Self {
        Self { name: Cell::text(name).text, count, note, is_sink: false, is_beside: false }
    }
}

/// An event of a message's life.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) at: Cell,
    pub(super) what: String,
    pub(super) tone: &'static str,
}

/// A form of filters, which the address keeps.
#[derive(Debug)]
pub(super) struct Filter {
    pub(super) action: String,
    pub(super) fields: Vec<Field>,
    pub(super) submit: &'static str,
}

/// A field of a form.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) value: String,
    /// Empty: any text.
    pub(super) choices: Vec<(String, bool)>,
    pub(super) is_required: bool,
}

/// The last step of an order.
#[derive(Debug, Default)]
pub(super) struct Confirm {
    /// A heading; empty: none.
    pub(super) title: String,
    pub(super) action: String,
    pub(super) hidden: Vec<(String, String)>,
    /// The reason that was given before.
    pub(super) because: String,
    /// Fields beside that of the reason.
    pub(super) fields: Vec<Field>,
    /// The number of messages, to be typed in.
    pub(super) count: Option<u64>,
    pub(super) submit: String,
    pub(super) warning: Option<String>,
    /// Whether nothing brings back what it does.
    pub(super) is_final: bool,
    /// Why the order cannot be given.
    pub(super) disabled: Option<String>,
}

impl Cell {
    /// A text of anybody: control characters and marks of direction are shown as escapes.
    pub(super) fn text(text: &str) -> Self {
        Self { text: shown(text), ..Self::default() }
    }

    pub(super) fn link(text: &str, href: impl Into<String>) -> Self {
        Self { href: Some(href.into()), ..Self::text(text) }
    }

    /// A value of an answer: a time is relative to now, a number is aligned.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::default(),
            Value::Bool(is) => Self::text(if *is { "yes" } else { "no" }),
            Value::Number(number) => Self { tone: "number", ..Self::text(&grouped(&number.to_string())) },
            Value::String(text) => Self::time(text).unwrap_or_else(|| Self::text(text)),
            Value::Array(all) => {
                let all: Vec<_> = all.iter().map(|value| Self::of(value).text).collect();
                Self::text(&all.join(", "))
            }
            Value::Object(_) => Self::text(&value.to_string()),
        }
    }

    /// Whether it is broken into lines.
    pub(super) fn is_long(&self) -> bool {
        self.text.chars().nth(32).is_some()
    }

    /// The text; of a time the absolute one.
    fn full(&self) -> &str {
        self.time.as_deref().unwrap_or(&self.text)
    }

    pub(super) fn toned(self, tone: &'static str) -> Self {
        Self { tone, ..self }
    }

    fn time(text: &str) -> Option<Self> {
        let time = moment(text)?;
        let ago = (OffsetDateTime::now_utc() - time).whole_microseconds();
        let ago = i64::try_from(ago).ok()?;
        let relative = match ago {
            0..1_000_000 => "now".to_owned(),
            1_000_000.. => format!("{} ago", span(ago)),
            _ => format!("in {}", span(ago)),
        };
        Some(Self { time: Some(text.to_owned()), ..Self::text(&relative) })
    }
}

/// A time of an answer.
pub(super) fn moment(text: &str) -> Option<OffsetDateTime> {
    let is_time = text.len() >= 20 && text.ends_with('Z');
    is_time.then(|| OffsetDateTime::parse(text, &Rfc3339).ok())?
}

/// A number with blanks between its thousands.
pub(super) fn grouped(digits: &str) -> String {
    if digits.len() < 5 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return digits.to_owned();
    }
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Returns a request as a command line.
pub(super) fn command(request: &Request) -> String {
    let mut words = vec!["relay".to_owned()];
    words.extend(request.path.split('/').map(str::to_owned));
    for (name, value) in &request.parameters {
        match (name.as_str(), value.as_str()) {
            ("message" | "job", value) => words.push(quoted(value)),
            (_, "false") => {}
            (name, "true") => words.push(format!("--{}", name.replace('_', "-"))),
            (name, value) => words.push(format!("--{} {}", name.replace('_', "-"), quoted(value))),
        }
    }
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", shown(word).replace('\'', "'\\''"))
}

/// Returns a path with a query.
pub(super) fn href<'a>(path: &str, query: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs(query.into_iter().filter(|(_, value)| !value.is_empty()));
    let query = form.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_from_outside_hides_nothing_and_a_time_is_relative() {
        assert_eq!(Cell::text("a\u{202e}b\n").text, "a\\u{202e}b\\u{a}");
        let past = Cell::of(&Value::from("2020-01-01T00:00:00Z"));
        assert!(past.text.ends_with(" ago") && past.time.as_deref() == Some("2020-01-01T00:00:00Z"), "{past:?}");
        assert_eq!(Cell::of(&Value::from("2020-01-01")).time, None);
        assert_eq!(grouped("1234567"), "1\u{202f}234\u{202f}567");
    }

    #[test]
    fn an_incident_has_absolute_times_and_shows_texts_as_they_are() {
        let row = vec![Cell::text("a|b"), Cell::of(&Value::from("2020-01-01T00:00:00Z"))];
        let table =
            Table { title: "T".to_owned(), columns: vec!["x".into(), "y".into()], rows: vec![row], ..Table::default() };
        let code = Block::Code("payload".to_owned(), "secret".to_owned());
        let blocks = vec![Block::Table(table), code];
        let view =
            View { title: "<b>".to_owned(), blocks, commands: vec!["relay why 7".to_owned()], ..View::default() };
        let text = view.markdown();
        assert!(text.starts_with("## \\<b\\>\n") && text.contains("| a\\|b | 2020-01-01T00:00:00Z |"), "{text}");
        assert!(text.ends_with("```sh\nrelay why 7\n```\n") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn a_request_is_shown_as_its_command() {
        let parameters = [("message", "7"), ("all", "false"), ("because", "it's fine"), ("group_by", "error")];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let request = Request { path: "dead/retry".to_owned(), parameters };
        assert_eq!(command(&request), "relay dead retry 7 --because 'it'\\''s fine' --group-by error");
        assert_eq!(href("/dead", [("reason", "a b&c"), ("topic", "")]), "/dead?reason=a+b%26c");
    }
}
