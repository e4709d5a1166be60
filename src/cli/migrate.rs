//! `relay migrate`.

use anyhow::Context as _;
use clap::Subcommand;
use outbox_core::{MIGRATIONS, SCHEMA_VERSION, store::schema};

use super::{
    Options, database,
    output::{self, Format},
};

/// What to do about the tables.
#[derive(Debug, Subcommand)]
pub(super) enum Migrate {
    /// Create the tables, or upgrade them; harmless where there is nothing to do
    Up,
    /// Which migrations were applied; exit code 3 if some were not
    Status(Format),
    /// Print the migrations as SQL; needs no database
    Sql,
}

impl Migrate {
    pub(super) async fn run(self, options: &Options) -> anyhow::Result<bool> {
        match self {
            Self::Up => up(options).await,
            Self::Status(format) => status(format, options).await,
            Self::Sql => sql(),
        }
    }
}

async fn up(options: &Options) -> anyhow::Result<bool> {
    let mut connection = database::connect(&options.database()?).await?;
    outbox_core::migrate(&mut connection).await.context("the migrations could not be applied")?;
    output::text(&format!("The outbox tables have version {SCHEMA_VERSION}.\n"))?;
    Ok(true)
}

async fn status(format: Format, options: &Options) -> anyhow::Result<bool> {
    let mut connection = database::connect(&options.database()?).await?;
    let found = schema::version(&mut connection).await.context("the record of migrations cannot be read")?;
    let state = |number: i64| match found {
        Some((_, Some(dirty))) if dirty == number => "stopped half-way",
        Some((newest, _)) if number <= newest => "applied",
        _ => "missing",
    };
    let rows = MIGRATIONS.map(|(number, name, _)| [number.into(), name.into(), state(number).into()]);
    format.rows(["number", "name", "state"], &rows)?;
    Ok(MIGRATIONS.iter().all(|(number, ..)| state(*number) == "applied"))
}

fn sql() -> anyhow::Result<bool> {
    let texts = MIGRATIONS.map(|(number, name, sql)| format!("-- Migration {number}: {name}\n\n{sql}"));
    output::text(&texts.join("\n"))?;
    Ok(true)
}
