//! The remaining work of a migration, by the catalogue.

use std::collections::BTreeSet;

use super::change::SchemaChange;
use crate::store::schema::catalogue::ObjectShape;

/// The remaining work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PlannedState {
    /// Nothing: it was done, and only its record is missing.
    Done,
    /// All of it.
    Missing,
    /// It cannot be done, because another object has its name.
    Differs(String),
}

/// Compares the result of a migration with the existing object. `later` are the parts that later migrations add to it.
pub(super) fn state(change: &SchemaChange, found: Option<&ObjectShape>, later: &BTreeSet<String>) -> PlannedState {
    match (change, found) {
        (SchemaChange::Rows, _) | (_, None) => PlannedState::Missing,
        (SchemaChange::Create(wanted), Some(found)) => {
            let additional: BTreeSet<_> = found.parts.difference(&wanted.parts).cloned().collect();
            compared(wanted, found, additional.difference(later))
        }
        (SchemaChange::Replace(wanted), Some(found)) => {
            if found.kind == wanted.kind && !wanted.parts.is_subset(&found.parts) {
                PlannedState::Missing
            } else {
                compared(wanted, found, [].iter())
            }
        }
        (SchemaChange::Add(wanted), Some(found)) => {
            let names: BTreeSet<_> = wanted.parts.iter().map(|part| name(part)).collect();
            if found.parts.iter().any(|part| names.contains(name(part))) {
                compared(wanted, found, [].iter())
            } else {
                PlannedState::Missing
            }
        }
    }
}

fn compared<'a>(
    wanted: &ObjectShape,
    found: &ObjectShape,
    additional: impl Iterator<Item = &'a String>,
) -> PlannedState {
    let lacking = list(wanted.parts.difference(&found.parts));
    let additional = list(additional);
    let what = format!("the {} {}", found.kind.word(), found.name);
    if wanted.kind != found.kind {
        return PlannedState::Differs(format!("{what} is no {}", wanted.kind.word()));
    }
    match (lacking.is_empty(), additional.is_empty()) {
        (true, true) => PlannedState::Done,
        (false, true) => PlannedState::Differs(format!("{what} lacks {lacking}")),
        (true, false) => PlannedState::Differs(format!("{what} has {additional} besides")),
        (false, false) => PlannedState::Differs(format!("{what} lacks {lacking} and has {additional}")),
    }
}

fn list<'a>(parts: impl Iterator<Item = &'a String>) -> String {
    parts.map(|part| format!("`{part}`")).collect::<Vec<_>>().join(", ")
}

/// The name of a column or key: `t_a` of `unique key t_a (a)`.
fn name(part: &str) -> &str {
    let part = part.strip_prefix("unique ").unwrap_or(part);
    part.strip_prefix("key ").unwrap_or(part).split(' ').next().unwrap_or(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::schema::catalogue::ObjectKind;

    fn shape(parts: &[&str]) -> ObjectShape {
        ObjectShape { kind: ObjectKind::Table, name: "t".to_owned(), parts: set(parts) }
    }

    fn set(parts: &[&str]) -> BTreeSet<String> {
        parts.iter().map(|part| (*part).to_owned()).collect()
    }

    fn differs(text: &str) -> PlannedState {
        PlannedState::Differs(text.to_owned())
    }

    #[test]
    fn a_table_is_the_outboxs_if_its_parts_are() {
        let create = SchemaChange::Create(shape(&["a int null", "primary key (a)"]));
        let later = set(&["b int null"]);
        for (found, expected) in [
            (&["a int null", "primary key (a)"][..], PlannedState::Done),
            (&["a int null", "primary key (a)", "b int null"], PlannedState::Done),
            (&["a int null"], differs("the table t lacks `primary key (a)`")),
            (&["a int null", "primary key (a)", "c int null"], differs("the table t has `c int null` besides")),
            (
                &["a int not null", "primary key (a)"],
                differs("the table t lacks `a int null` and has `a int not null`"),
            ),
        ] {
            assert_eq!(state(&create, Some(&shape(found)), &later), expected, "{found:?}");
        }
        assert_eq!(state(&create, None, &later), PlannedState::Missing);
        let view = ObjectShape { kind: ObjectKind::View, ..shape(&["a"]) };
        assert_eq!(state(&create, Some(&view), &later), differs("the view t is no table"));
    }

    #[test]
    fn what_is_added_is_there_as_a_whole_or_not_at_all() {
        let add = SchemaChange::Add(shape(&["b int null", "key t_b (b)"]));
        for (found, expected) in [
            (&["a int null", "b int null", "key t_b (b)"][..], PlannedState::Done),
            (&["a int null"], PlannedState::Missing),
            (&["b bigint null"], differs("the table t lacks `b int null`, `key t_b (b)`")),
            (&["b int null"], differs("the table t lacks `key t_b (b)`")),
        ] {
            assert_eq!(state(&add, Some(&shape(found)), &BTreeSet::new()), expected, "{found:?}");
        }
        assert_eq!(state(&add, None, &BTreeSet::new()), PlannedState::Missing, "its table is made before");
    }

    #[test]
    fn a_view_is_replaced_once() {
        let view = |parts: &[&str]| ObjectShape { kind: ObjectKind::View, ..shape(parts) };
        let replace = SchemaChange::Replace(view(&["a", "b"]));
        for (found, expected) in [
            (view(&["a"]), PlannedState::Missing),
            (view(&["a", "b"]), PlannedState::Done),
            (view(&["a", "b", "c"]), PlannedState::Done),
            (shape(&["a"]), differs("the table t is no view")),
        ] {
            assert_eq!(state(&replace, Some(&found), &BTreeSet::new()), expected, "{found:?}");
        }
        let create = SchemaChange::Create(view(&["a"]));
        assert_eq!(state(&create, Some(&view(&["a", "b"])), &set(&["b"])), PlannedState::Done);
    }

    #[test]
    fn rows_are_written_again() {
        assert_eq!(state(&SchemaChange::Rows, None, &BTreeSet::new()), PlannedState::Missing);
    }
}
