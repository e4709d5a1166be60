//! The change that a migration makes, read from its text.

use crate::store::schema::catalogue::{ObjectKind, ObjectShape};

/// The change of one migration. A migration is one statement, because no statement that changes tables can be rolled
/// back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SchemaChange {
    /// It creates a table or a view.
    Create(ObjectShape),
    /// It replaces a view by one with more columns.
    Replace(ObjectShape),
    /// It adds columns or keys to a table.
    Add(ObjectShape),
    /// It writes rows, and writes nothing the second time.
    Rows,
}

impl SchemaChange {
    /// `None` if the runner does not understand the statement. A test allows no such migration.
    pub(super) fn of(sql: &str) -> Option<Self> {
        let text = statement(sql);
        let text = text.strip_suffix(';').filter(|text| !text.contains(';'))?;
        if let Some(rest) = text.strip_prefix("CREATE TABLE ") {
            let (name, body) = rest.split_once(" (")?;
            let body = body.strip_suffix(" ROW_FORMAT = DYNAMIC").unwrap_or(body).strip_suffix(") ENGINE = InnoDB")?;
            return Some(Self::Create(table(name, top_level(body).map(part).chain([ENGINE.to_owned()]))));
        }
        if let Some(rest) = text.strip_prefix(CREATE_VIEW) {
            return view(rest).map(Self::Create);
        }
        if let Some(rest) = text.strip_prefix(REPLACE_VIEW) {
            return view(rest).map(Self::Replace);
        }
        if let Some(rest) = text.strip_prefix("ALTER TABLE ") {
            let (name, adds) = rest.split_once(' ')?;
            let adds = adds.strip_suffix(", ALGORITHM = INSTANT")?;
            let parts: Option<Vec<_>> = top_level(adds).map(added).collect();
            return Some(Self::Add(table(name, parts?)));
        }
        ROWS.iter().any(|verb| text.starts_with(verb)).then_some(Self::Rows)
    }

    /// The table or view.
    pub(super) fn shape(&self) -> Option<&ObjectShape> {
        match self {
            Self::Create(shape) | Self::Replace(shape) | Self::Add(shape) => Some(shape),
            Self::Rows => None,
        }
    }
}

/// The part of a migration that reads or writes rows: it needs privileges on them.
pub(super) fn rows(sql: &str) -> Option<String> {
    let text = statement(sql);
    let text = text.strip_suffix(';')?;
    let text = text.strip_suffix(" WITH CASCADED CHECK OPTION").unwrap_or(text);
    let is_view = [CREATE_VIEW, REPLACE_VIEW].iter().any(|verb| text.starts_with(verb));
    let select = is_view.then(|| text.find("SELECT ")).flatten();
    let start = select.or_else(|| ROWS.iter().any(|verb| text.starts_with(verb)).then_some(0))?;
    text.get(start..).map(str::to_owned)
}

/// A migration without comments, with single white spaces.
fn statement(sql: &str) -> String {
    let lines = sql.lines().filter(|line| !line.starts_with("--"));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

const CREATE_VIEW: &str = "CREATE VIEW ";
const REPLACE_VIEW: &str = "CREATE OR REPLACE VIEW ";

/// The beginnings of statements that write nothing the second time.
const ROWS: [&str; 2] = ["INSERT IGNORE INTO ", "UPDATE "];

/// The spelling of a table's engine among its parts.
const ENGINE: &str = "engine innodb";

fn table(name: &str, parts: impl IntoIterator<Item = String>) -> ObjectShape {
    ObjectShape { kind: ObjectKind::Table, name: name.to_owned(), parts: parts.into_iter().collect() }
}

/// The name of a view, and what it selects.
fn view(text: &str) -> Option<ObjectShape> {
    let (name, select) = text.split_once(" AS SELECT ")?;
    let columns = top_level(select.split_once(" FROM ")?.0);
    let parts = columns.filter_map(|column| Some(column.rsplit([' ', '.']).next()?.to_owned()));
    Some(ObjectShape { kind: ObjectKind::View, name: name.to_owned(), parts: parts.collect() })
}

/// `ADD COLUMN …` or `ADD KEY …`.
fn added(text: &str) -> Option<String> {
    let text = text.strip_prefix("ADD ")?;
    Some(part(text.strip_prefix("COLUMN ").unwrap_or(text)))
}

/// The texts between the commas outside parentheses.
fn top_level(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .map(str::trim)
}

/// A column or a key in the spelling of [`ObjectShape`].
fn part(text: &str) -> String {
    let text = text.to_lowercase().replace(", ", ",");
    let mut words = text.split(' ');
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word {
            // The collation implies the character set.
            "character" => drop(words.by_ref().nth(1)),
            "collate" => {}
            _ => kept.push(word.strip_prefix('(').filter(|_| kept.last() == Some(&"default")).map_or(word, unclosed)),
        }
    }
    kept.join(" ")
}

fn unclosed(expression: &str) -> &str {
    expression.strip_suffix(')').unwrap_or(expression)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(change: Option<SchemaChange>) -> Vec<String> {
        change.unwrap().shape().unwrap().parts.iter().cloned().collect()
    }

    #[test]
    fn a_table_is_its_columns_its_keys_and_its_engine() {
        let sql = "-- a; comment\nCREATE TABLE t (\n  id BIGINT UNSIGNED NOT NULL \
                   AUTO_INCREMENT,\n  a  VARCHAR(9)  CHARACTER SET ascii COLLATE ascii_bin NULL,\n  at DATETIME(6) NOT \
                   NULL DEFAULT (UTC_TIMESTAMP(6)),\n  n INT NOT NULL DEFAULT 0,\n  PRIMARY KEY (id),\n  UNIQUE KEY \
                   t_a (a, n)\n) ENGINE = InnoDB;\n";
        let expected = [
            "a varchar(9) ascii_bin null",
            "at datetime(6) not null default utc_timestamp(6)",
            "engine innodb",
            "id bigint unsigned not null auto_increment",
            "n int not null default 0",
            "primary key (id)",
            "unique key t_a (a,n)",
        ];
        assert_eq!(parts(SchemaChange::of(sql)), expected);
    }

    #[test]
    fn a_view_is_the_names_of_its_columns() {
        let sql = "CREATE VIEW v AS\n  SELECT m.id, IF(a, b, CONCAT('x', c)) AS receipt\n  FROM t m;\n";
        let Some(SchemaChange::Create(shape)) = SchemaChange::of(sql) else { panic!() };
        assert_eq!((shape.kind, shape.name.as_str()), (ObjectKind::View, "v"));
        assert_eq!(Vec::from_iter(shape.parts), ["id", "receipt"]);
        let select = Some("SELECT m.id, IF(a, b, CONCAT('x', c)) AS receipt FROM t m");
        assert_eq!(rows(sql).as_deref(), select);
        assert_eq!(rows(&sql.replace(" m;", " m\n  WITH CASCADED CHECK OPTION;")).as_deref(), select);
        let again = sql.replace("CREATE", "CREATE OR REPLACE");
        assert!(matches!(SchemaChange::of(&again), Some(SchemaChange::Replace(_))));
        assert_eq!(parts(SchemaChange::of(&again)), parts(SchemaChange::of(sql)));
        assert_eq!(rows(&again).as_deref(), select);
    }

    #[test]
    fn columns_and_keys_are_added_at_once_or_not_at_all() {
        let sql = "ALTER TABLE t ADD COLUMN a INT UNSIGNED NULL, ADD KEY t_a (a, b), ALGORITHM = INSTANT;";
        assert_eq!(parts(SchemaChange::of(sql)), ["a int unsigned null", "key t_a (a,b)"]);
        for sql in
            ["ALTER TABLE t ADD COLUMN a INT;", "ALTER TABLE t DROP COLUMN a, ALGORITHM = INSTANT;", "DROP TABLE t;"]
        {
            assert_eq!(SchemaChange::of(sql), None, "{sql}");
        }
    }

    #[test]
    fn a_migration_is_one_statement() {
        assert_eq!(SchemaChange::of("INSERT IGNORE INTO t (a) VALUES (1);"), Some(SchemaChange::Rows));
        for sql in [
            "INSERT IGNORE INTO t (a) VALUES (1); UPDATE t SET a = 2;",
            "INSERT INTO t (a) VALUES (1);",
            "UPDATE t SET a = 1",
        ] {
            assert_eq!(SchemaChange::of(sql), None, "{sql}");
        }
    }
}
