//! The columns of a message: its id, and its contents `topic, message_key, event_type, content_type, headers, payload`.

use sqlx::{Row as _, mysql::MySqlRow};
use uuid::Uuid;

use crate::Contents;

/// The contents in the six columns from this one on, and whether the headers can be read: the row may have been edited
/// by hand. Headers that cannot be read count as none.
pub(in crate::store) fn of(row: &MySqlRow, first: usize) -> Result<(Contents, bool), sqlx::Error> {
    let headers = headers_from_json(row.try_get(first + 4)?);
    let is_readable = headers.is_some();
    let contents = Contents {
        topic: row.try_get(first)?,
        key: row.try_get(first + 1)?,
        event_type: row.try_get(first + 2)?,
        content_type: row.try_get(first + 3)?,
        headers: headers.unwrap_or_default(),
        payload: row.try_get(first + 5)?,
    };
    Ok((contents, is_readable))
}

/// The id in a column of sixteen bytes.
pub(in crate::store) fn uuid(bytes: &[u8]) -> Result<Uuid, sqlx::Error> {
    Uuid::from_slice(bytes).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Headers as their column holds them: a JSON object of strings, or NULL for none. Of two with one name the last stays.
#[must_use]
pub fn headers_to_json(headers: &[(String, String)]) -> Option<String> {
    let object: serde_json::Map<_, _> =
        headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    (!object.is_empty()).then(|| serde_json::Value::Object(object).to_string())
}

/// The headers of a column, in the order in which they were written; `None` if they are not a JSON object of strings.
#[must_use]
pub fn headers_from_json(json: Option<&str>) -> Option<Vec<(String, String)>> {
    let Some(json) = json else { return Some(Vec::new()) };
    let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).ok()?;
    object.into_iter().map(|(name, value)| Some((name, serde_json::from_value(value).ok()?))).collect()
}
