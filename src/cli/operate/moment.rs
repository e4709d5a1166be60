//! A time on the command line.

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::operate::replay::now,
};
use outbox_relay::settings::value::duration;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// A time in microseconds since 1970, or before now.
#[derive(Debug, Clone, Copy)]
pub(super) enum Moment {
    At(i64),
    Ago(i64),
}

/// Reads it.
pub(super) fn moment(text: &str) -> Result<Moment, &'static str> {
    if let Some(ago) = duration(text).and_then(|ago| i64::try_from(ago.as_micros()).ok()) {
        return Ok(Moment::Ago(ago));
    }
    let time = OffsetDateTime::parse(text, &Rfc3339).ok();
    let micros = time.and_then(|time| i64::try_from(time.unix_timestamp_nanos() / 1_000).ok());
    micros.map(Moment::At).ok_or("give a time such as 2026-11-26T08:00:00Z, or one before now such as 2h")
}

/// Returns times in microseconds since 1970, by the database's clock.
pub(super) async fn micros<const N: usize>(
    db: &mut MySqlConnection,
    moments: [Option<Moment>; N],
) -> Result<[Option<i64>; N], sqlx::Error> {
    let now = now(db).await?;
    let micros = |moment| match moment {
        Moment::At(micros) => micros,
        Moment::Ago(micros) => now - micros,
    };
    Ok(moments.map(|moment| moment.map(micros)))
}
