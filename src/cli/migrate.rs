use std::io::Write as _;

use anyhow::Context as _;
use clap::Subcommand;
use outbox_core::{
    MIGRATIONS, SCHEMA_VERSION,
    sqlx::{ConnectOptions as _, MySqlConnection},
    store::schema,
};

use super::{End, Format, table};
use crate::{config::Config, database};

#[derive(Debug, Subcommand)]
pub(super) enum Migrate {
    /// Apply what is missing; harmless when nothing is.
    Up,
    /// Which migrations are applied; exit status 3 if one is missing.
    Status,
    /// Print the migrations, to apply them by other means.
    Sql,
}

pub(super) fn sql() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for (version, name, sql) in MIGRATIONS {
        writeln!(out, "-- {version:04} {name}\n{sql}")?;
    }
    Ok(())
}

pub(super) async fn migrate(what: &Migrate, config: &Config, format: Format) -> anyhow::Result<End> {
    let mut db = connect(config).await?;
    if matches!(what, Migrate::Up) {
        outbox_core::migrate(&mut db).await.context("the migrations could not be applied")?;
        eprintln!("the tables have version {SCHEMA_VERSION}");
    }
    let applied = schema::version(&mut db).await?.map_or(0, |(version, _)| version);
    let row = |(version, name, _): (i64, &str, &str)| {
        let state = if version <= applied { "applied" } else { "missing" };
        [version.to_string(), name.to_owned(), state.to_owned()]
    };
    table::print(["version", "name", "state"], &MIGRATIONS.map(row), format)?;
    Ok(if applied >= SCHEMA_VERSION { End::Ok } else { End::No })
}

/// One connection, for a command that does one thing.
pub(super) async fn connect(config: &Config) -> anyhow::Result<MySqlConnection> {
    let options = database::options(&config.database).context("database.url cannot be read")?;
    options.connect().await.context("the database cannot be reached (database.url)")
}
