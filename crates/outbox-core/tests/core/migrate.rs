//! The tables are made once, whoever makes them, and a version that this program does not know is named.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    MIGRATIONS, SCHEMA_VERSION, check_schema, sqlx,
    store::{operate::find, schema},
};
use testkit::{database::Database, on_both_databases, servers::Flavor};

on_both_databases!(
    migrating_twice_is_harmless,
    migrating_from_two_places_at_once_is_harmless,
    while_one_migrates_another_does_not,
    the_outbox_shares_a_database_with_the_services_own_migrations,
    a_schema_that_does_not_fit_is_named,
    a_table_of_another_engine_or_collation_is_named,
    every_table_is_looked_at,
    the_views_show_one_row_for_each_message,
    the_trace_is_all_that_a_view_shows_of_headers,
);

async fn migrate(database: &Database) -> Result<()> {
    let mut connection = database.connect().await?;
    Ok(outbox_core::migrate(&mut connection).await?)
}

async fn problem(database: &Database) -> Result<String> {
    let mut connection = database.connect().await?;
    let error = check_schema(&mut connection).await.err().context("the schema is accepted")?;
    Ok(error.to_string())
}

async fn migrating_twice_is_harmless(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    migrate(&database).await?;
    database.execute("INSERT INTO outbox_head (lane) VALUES (3)").await?;
    migrate(&database).await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_head WHERE lane = 3").await?, 1);
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_migrations").await?, i64::try_from(MIGRATIONS.len())?);
    check_schema(&mut database.connect().await?).await?;
    Ok(())
}

async fn while_one_migrates_another_does_not(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut one = database.connect().await?;
    let mut other = database.connect().await?;
    ensure!(schema::lock(&mut one, 0).await?);
    ensure!(!schema::lock(&mut other, 0).await?, "both migrate");
    schema::unlock(&mut one).await?;
    ensure!(schema::lock(&mut other, 0).await?, "nobody migrates any more");
    Ok(())
}

async fn migrating_from_two_places_at_once_is_harmless(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    let (a, b, c) = tokio::join!(migrate(&database), migrate(&database), migrate(&database));
    a.and(b).and(c)?;
    check_schema(&mut database.connect().await?).await?;
    Ok(())
}

async fn the_outbox_shares_a_database_with_the_services_own_migrations(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    database.execute("CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY)").await?;
    database.execute("INSERT INTO _sqlx_migrations VALUES (20240101)").await?;
    migrate(&database).await?;
    check_schema(&mut database.connect().await?).await?;
    assert_eq!(database.number("SELECT COUNT(*) FROM _sqlx_migrations").await?, 1);
    Ok(())
}

async fn a_schema_that_does_not_fit_is_named(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    let missing = "the outbox tables do not exist in this database: run `relay migrate up`";
    assert_eq!(problem(&database).await?, missing);
    migrate(&database).await?;
    let needed = SCHEMA_VERSION;
    for edit in ["DELETE FROM outbox_migrations WHERE version = 2", "UPDATE outbox_migrations SET success = FALSE"] {
        database.execute(edit).await?;
        let found = i64::from(edit.starts_with("DELETE"));
        let older =
            format!("the outbox tables have version {found}, this program needs {needed}: run `relay migrate up`");
        assert_eq!(problem(&database).await?, older);
    }
    migrate(&database).await?;
    database.execute(&format!("UPDATE outbox_schema SET smallest_writer = {}", needed + 1)).await?;
    let newer = format!(
        "the outbox tables serve programs that know version {} or a later one, this program knows {needed}: install a \
         newer release",
        needed + 1
    );
    assert_eq!(problem(&database).await?, newer);
    outbox_core::check_schema_to_read(&mut database.connect().await?).await?;
    database.execute("DELETE FROM outbox_schema").await?;
    let unstated = "the table outbox_schema has no row: write the one again that `relay migrate sql` prints";
    assert_eq!(problem(&database).await?, unstated);
    database.execute("UPDATE outbox_migrations SET checksum = 'other' WHERE version = 3").await?;
    let changed = "migration 3 was applied with another text than this release has";
    assert!(problem(&database).await?.starts_with(changed));
    let refused = migrate(&database).await.err().context("another text is accepted")?;
    assert!(refused.to_string().starts_with(changed), "{refused}");
    database.execute("DELETE FROM outbox_migrations").await?;
    assert_eq!(problem(&database).await?, missing);
    Ok(())
}

async fn a_table_of_another_engine_or_collation_is_named(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    migrate(&database).await?;
    database
        .execute(
            "CREATE TABLE outbox_of_another_library (id INT PRIMARY KEY, \
                  a TEXT COLLATE utf8mb4_general_ci) ENGINE = MyISAM",
        )
        .await?;
    check_schema(&mut database.connect().await?).await?;
    database
        .execute("ALTER TABLE outbox_leases MODIFY owner VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        .await?;
    let collation = "the column outbox_leases.owner has the collation utf8mb4_general_ci, which takes different texts \
                     for the same: give it the one that `relay migrate sql` prints";
    assert_eq!(problem(&database).await?, collation);
    database.execute("ALTER TABLE outbox_leases ENGINE = MyISAM").await?;
    let engine = "the table outbox_leases has the engine MyISAM: run `ALTER TABLE outbox_leases ENGINE = InnoDB`";
    assert_eq!(problem(&database).await?, engine);
    Ok(())
}

async fn every_table_is_looked_at(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let sql = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE() \
               AND table_type = 'BASE TABLE' AND (table_name LIKE 'outbox\\_%' OR table_name LIKE 'inbox\\_%') \
               AND table_name <> 'outbox_migrations' ORDER BY table_name DESC";
    let tables: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut database.plain().await?).await?;
    assert!(tables.len() >= 13, "{tables:?}");
    // Without its row the check ends before.
    let row = "CREATE TABLE outbox_schema (id INT PRIMARY KEY, smallest_reader BIGINT UNSIGNED, \
               smallest_writer BIGINT UNSIGNED) ENGINE = MyISAM; \
               INSERT INTO outbox_schema VALUES (1, 1, 1)";
    // The first by name is reported: that is the newest one of these.
    for table in tables {
        let plain = format!("CREATE TABLE {table} (id INT PRIMARY KEY) ENGINE = MyISAM");
        let create = if table == "outbox_schema" { row } else { &plain };
        database.execute(&format!("DROP TABLE {table}; {create}")).await?;
        let engine = format!("the table {table} has the engine MyISAM");
        assert!(problem(&database).await?.starts_with(&engine), "{table}");
    }
    Ok(())
}

/// A list that somebody has made unreadable hides its own messages only.
async fn the_views_show_one_row_for_each_message(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    for (id, ids, receipts) in
        [(4, "[7,8]", r#"["t/0@1","t/1@5"]"#), (5, "[9]", "no list"), (6, "no list", r#"["t/1@6"]"#)]
    {
        let sql = format!(
            "INSERT INTO outbox_claims VALUES ({id}, 0, 'me', 9, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '{ids}', '', 0, \
             0); \
             INSERT INTO outbox_sent VALUES ({id}, {id}, 9, 0, 'me', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '{ids}', \
             '{receipts}')"
        );
        database.execute(&sql).await?;
    }
    let standing = "INSERT INTO outbox_claims VALUES (10, 3, 'me', 9, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), '[]', '', 1, \
                    21); \
        INSERT INTO outbox_pending (lane, id, key_hash, bytes) \
        VALUES (3, 20, 0, 1), (3, 21, 0, 1), (3, 22, 0, 1), (4, 20, 0, 1)";
    database.execute(standing).await?;
    let mut connection = database.connect().await?;
    let claimed: Vec<(u64, u64)> = sqlx::query_as("SELECT id, claim_id FROM outbox_claimed_messages ORDER BY id")
        .fetch_all(&mut connection)
        .await?;
    assert_eq!(claimed, [(7, 4), (8, 4), (9, 5), (20, 10), (21, 10)]);
    let sent: Vec<(u64, Option<String>)> =
        sqlx::query_as("SELECT id, receipt FROM outbox_sent_messages ORDER BY id").fetch_all(&mut connection).await?;
    assert_eq!(sent, [(7, Some("t/0@1".to_owned())), (8, Some("t/1@5".to_owned())), (9, None)]);
    Ok(())
}

async fn the_trace_is_all_that_a_view_shows_of_headers(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331");
    let cases = [
        (Some(format!(r#"{{"a": "b", "traceparent": "{parent}-01"}}"#)), Some(trace)),
        // A later version of the header.
        (Some(format!(r#"{{"traceparent": "cc-{trace}-b7ad6b7169203331-01-more"}}"#)), Some(trace)),
        (Some(format!(r#"{{"Traceparent": "{parent}-01"}}"#)), None),
        (Some(format!(r#"{{"traceparent": "{}-01"}}"#, parent.to_uppercase())), None),
        (Some(r#"{"traceparent": "00-0000secret-00"}"#.to_owned()), None),
        (Some(format!(r#"{{"traceparent": ["{parent}-01"]}}"#)), None),
        (Some(r#"{"traceparent": null}"#.to_owned()), None),
        (Some("no JSON".to_owned()), None),
        (None, None),
    ];
    // It commits each statement, whatever the server's default.
    let mut connection = database.plain().await?;
    for (headers, _) in &cases {
        let sql =
            "INSERT INTO outbox_messages (message_id, topic, headers) VALUES (UNHEX(REPLACE(UUID(), '-', '')), 't', ?)";
        sqlx::query(sql).bind(headers).execute(&mut connection).await?;
    }
    let sql = "SELECT CAST(trace_id AS CHAR) FROM outbox_listed_messages ORDER BY id";
    let shown: Vec<Option<String>> = sqlx::query_scalar(sql).fetch_all(&mut connection).await?;
    let expected = cases.map(|(_, trace)| trace.map(str::to_owned));
    assert_eq!(shown, expected);
    // MySQL refuses to look into JSON of more than a hundred levels.
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let sql =
        "INSERT INTO outbox_messages (message_id, topic, headers) VALUES (UNHEX(REPLACE(UUID(), '-', '')), 't', ?)";
    let id = sqlx::query(sql).bind(deep).execute(&mut connection).await?.last_insert_id();
    let found = find::find(&mut database.connect().await?, id).await?;
    assert!(found.message.is_some() && found.trace_id.is_none(), "{found:?}");
    Ok(())
}

#[test]
fn the_embedded_migrations_are_those_of_the_repository() -> Result<()> {
    let files = sql_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations"))?;
    let embedded = MIGRATIONS.map(|(version, name, sql)| (format!("{version:04}_{name}.sql"), sql.to_owned()));
    assert_eq!(files, embedded);
    assert_eq!(MIGRATIONS.last().map(|(version, ..)| *version), Some(SCHEMA_VERSION));
    Ok(())
}

fn sql_files(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sql") {
            let name = path.file_name().context("no name")?.to_string_lossy().into_owned();
            files.push((name, fs::read_to_string(&path)?));
        }
    }
    files.sort();
    Ok(files)
}
