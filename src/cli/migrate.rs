//! `relay migrate`.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use outbox_core::{MIGRATOR, SCHEMA_VERSION, sqlx::MySqlConnection, store::schema::migrate};
use serde_json::Value;

use super::{
    Arguments, database,
    output::{self, Format},
};

const NOT_APPLIED: &str = "the migrations could not be applied";

/// What to do about the tables.
#[derive(Debug, Subcommand)]
pub(super) enum Migrate {
    /// Create the tables, or upgrade them, and print the plan before; harmless where there is nothing to do
    Up,
    /// Which migrations were applied; exit code 3 if some were not
    Status(Format),
    /// Print the migrations and their record as SQL, for another tool to apply; needs no database
    Sql(Script),
    /// Adopt tables that are there: compare them with the migrations, and write the record
    Baseline,
}

/// Which migrations to print.
#[derive(Debug, Args)]
pub(super) struct Script {
    /// Only those above this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: i64,
}

impl Migrate {
    pub(super) async fn run(self, options: &Arguments) -> anyhow::Result<bool> {
        match self {
            Self::Up => up(options).await,
            Self::Status(format) => status(format, options).await,
            Self::Sql(script) => {
                output::text(&outbox_core::migration_script(script.after))?;
                Ok(true)
            }
            Self::Baseline => baseline(options).await,
        }
    }
}

async fn up(options: &Arguments) -> anyhow::Result<bool> {
    let mut connection = database::connect(&options.database()?).await?;
    let due = async |db: &mut MySqlConnection| outbox_core::migrations_due(db).await.context(NOT_APPLIED);
    let due = database::within(&mut connection, due).await?;
    // Where there are no tables yet, all of them are the plan.
    let is_new = due.len() == MIGRATOR.iter().count() && due.iter().all(|due| !due.work.contains("applied"));
    let plan = due.iter().filter(|_| !is_new);
    let plan = plan.map(|due| format!("Migration {} ({}) {}.\n", due.version, due.name, due.work));
    output::text(&plan.collect::<String>())?;
    outbox_core::migrate(&mut connection).await.context(NOT_APPLIED)?;
    output::text(&if is_new {
        format!("The outbox tables are made: version {SCHEMA_VERSION}.\n")
    } else {
        format!("The outbox tables have version {SCHEMA_VERSION} or a later one.\n")
    })?;
    Ok(true)
}

async fn baseline(options: &Arguments) -> anyhow::Result<bool> {
    let mut connection = database::connect(&options.database()?).await?;
    outbox_core::baseline(&mut connection).await.context("the tables could not be adopted")?;
    output::text(&format!("The outbox tables have version {SCHEMA_VERSION}, and that is recorded.\n"))?;
    Ok(true)
}

async fn status(format: Format, options: &Arguments) -> anyhow::Result<bool> {
    let mut connection = database::connect(&options.database()?).await?;
    let record = database::within(&mut connection, async |db| {
        migrate::applied(db).await.context("the record of migrations cannot be read")
    });
    let record = record.await?;
    let record = record.unwrap_or_default();
    let own = MIGRATOR.iter().map(|own| {
        let state = match record.iter().find(|row| row.success && row.version == own.version) {
            Some(row) if *row.checksum == *own.checksum => "applied",
            Some(_) => "applied with another text",
            None => "missing",
        };
        (own.version, own.description.as_ref(), state)
    });
    let later = record.iter().filter(|row| row.success && row.version > SCHEMA_VERSION);
    let later = later.map(|row| (row.version, row.description.as_str(), "applied by a later release"));
    let own: Vec<_> = own.collect();
    let complete = own.iter().all(|(.., state)| *state == "applied");
    let row = |(version, name, state): (i64, &str, &str)| [Value::from(version), name.into(), state.into()];
    let rows: Vec<_> = own.into_iter().chain(later).map(row).collect();
    format.rows(["number", "name", "state"], &rows)?;
    Ok(complete)
}
