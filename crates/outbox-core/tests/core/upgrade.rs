//! Tables in the hands of users: programs of two releases on them, migrations that are killed, wait or are refused, and
//! other tools.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use outbox_core::{
    Claim, Inbox, MIGRATOR, Message, MigrateError, Outbox, SCHEMA_VERSION, Uuid, check_schema, migration_script,
    sqlx::{self, Connection as _, MySqlConnection, mysql::MySqlPoolOptions},
};
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    proxy::Proxy,
    servers::{Flavor, PATIENCE, until},
    upgrade::{self, NEXT},
};

on_both_databases!(
    a_migration_that_is_cut_after_any_statement_is_completed_by_the_next_one,
    a_migration_that_waits_for_a_transaction_stalls_no_enqueue,
    a_name_that_is_taken_is_refused_before_anything_is_changed,
    a_privilege_that_is_lacking_is_named_before_anything_is_changed,
    a_table_that_has_to_be_copied_is_left_alone_and_its_size_told,
    what_another_tool_applies_is_all_that_the_check_wants,
    tables_without_their_record_are_adopted_if_they_are_the_same,
    programs_of_the_release_before_go_on_after_an_upgrade,
    the_session_of_the_caller_does_not_matter_and_stays,
    sqlx_applies_the_same_migrations,
);

/// For how long at most an enqueue may wait for a migration.
const STALL: Duration = Duration::from_secs(5);

async fn migrate(database: &Database) -> Result<(), MigrateError> {
    let mut connection = database.connect().await.map_err(|error| sqlx::Error::Configuration(error.into()))?;
    outbox_core::migrate(&mut connection).await
}

/// Everything that the tables are made of, and what migrations write.
async fn made(database: &Database) -> Result<Vec<String>> {
    let sql = "SELECT CAST(CONCAT_WS(' ', table_name, ordinal_position, column_name, column_type, collation_name, \
               is_nullable, \
               COALESCE(column_default, '-'), extra) AS CHAR) FROM information_schema.columns \
               WHERE table_schema = DATABASE() UNION ALL \
               SELECT CAST(CONCAT_WS(' ', table_name, index_name, seq_in_index, column_name, non_unique) AS CHAR) \
               FROM information_schema.statistics WHERE table_schema = DATABASE() UNION ALL \
               SELECT CAST(CONCAT_WS(' ', table_name, table_type, COALESCE(engine, '-')) AS CHAR) \
               FROM information_schema.tables WHERE table_schema = DATABASE()";
    let mut connection = database.connect().await?;
    let mut made: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut connection).await?;
    if made.iter().any(|line| line.starts_with("outbox_schema ")) {
        let rows = "SELECT CAST(CONCAT('migration ', version, ' ', success, ' ', HEX(checksum)) AS CHAR) \
                    FROM outbox_migrations UNION ALL \
                    SELECT CAST(CONCAT('lane ', lane) AS CHAR) FROM outbox_head UNION ALL \
                    SELECT CAST(CONCAT('schema ', smallest_reader, ' ', smallest_writer) AS CHAR) FROM outbox_schema";
        let rows: Vec<String> = sqlx::query_scalar(rows).fetch_all(&mut connection).await?;
        made.extend(rows);
    }
    // The server may compare the beginnings of lines only.
    made.sort();
    Ok(made)
}

/// Tables that nothing went wrong with.
async fn reference(flavor: Flavor) -> Result<Vec<String>> {
    let database = Database::create_empty(flavor).await?;
    migrate(&database).await?;
    made(&database).await
}

fn is_new(seen: &Mutex<HashSet<Vec<u8>>>, packet: &[u8]) -> bool {
    seen.lock().unwrap_or_else(PoisonError::into_inner).insert(packet.to_vec())
}

async fn a_migration_that_is_cut_after_any_statement_is_completed_by_the_next_one(flavor: Flavor) -> Result<()> {
    let whole = Database::create_empty(flavor).await?;
    upgrade::to_next(&whole).await?;
    let database = Database::create_empty(flavor).await?;
    let proxy = Proxy::start(database.url()).await?;
    // Rows are written again, where they were written without a record: that is cut once each.
    let rows = Arc::new(Mutex::new(HashSet::new()));
    let mut cuts = 0;
    loop {
        let rows = Arc::clone(&rows);
        proxy.cut_replies(1, move |packet| {
            upgrade::changes(packet) && (!upgrade::writes_rows(packet) || is_new(&rows, packet))
        });
        let mut connection = MySqlConnection::connect(proxy.address()).await?;
        let outcome = outbox_core::migrate_with(&mut connection, &NEXT).await;
        proxy.heal();
        match outcome {
            Ok(()) => break,
            Err(
                MigrateError::Database(sqlx::Error::Io(_)) | MigrateError::Refused { source: sqlx::Error::Io(_), .. },
            ) => {
                cuts += 1;
            }
            Err(error) => return Err(error).context(format!("after {cuts} cuts")),
        }
    }
    // Every statement, each record, and the record's own table.
    assert_eq!(cuts, 2 * (MIGRATOR.iter().len() + NEXT.len()) + 1);
    assert_eq!(made(&database).await?, made(&whole).await?);
    Ok(())
}

/// The transaction goes on until the migration has given up once and enqueues have gone through.
async fn a_migration_that_waits_for_a_transaction_stalls_no_enqueue(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let mut long = database.connect().await?;
    let mut long = long.begin().await?;
    enqueue(&mut long).await?;
    let done = Arc::new(AtomicBool::new(false));
    let migration = {
        let database = database.clone();
        let done = Arc::clone(&done);
        tokio::spawn(async move {
            let migrated = upgrade::to_next(&database).await;
            done.store(true, Relaxed);
            migrated
        })
    };
    let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() \
                 AND info LIKE 'ALTER TABLE outbox_messages ADD%'";
    let mut longest = Duration::ZERO;
    for _ in 0..2 {
        database.wait_for(PATIENCE, waits).await?;
        let start = Instant::now();
        commit(&database).await?;
        longest = longest.max(start.elapsed());
        until(PATIENCE, "the migration to give up for now", || async {
            ensure!(database.number(waits).await? == 0, "it waits");
            Ok(())
        })
        .await?;
    }
    ensure!(!done.load(Relaxed), "it has not waited for the transaction");
    ensure!(longest <= STALL, "an enqueue waited for {longest:?}");
    long.commit().await?;
    migration.await??;
    assert_eq!(database.number("SELECT COUNT(*) FROM outbox_messages WHERE next_note = 0").await?, 3);
    Ok(())
}

async fn enqueue(conn: &mut MySqlConnection) -> Result<()> {
    Outbox::new().enqueue(conn, Message::new("orders", "{}")).await?;
    Ok(())
}

async fn commit(database: &Database) -> Result<()> {
    let mut connection = database.connect().await?;
    let mut tx = connection.begin().await?;
    enqueue(&mut tx).await?;
    Ok(tx.commit().await?)
}

async fn a_name_that_is_taken_is_refused_before_anything_is_changed(flavor: Flavor) -> Result<()> {
    for (own, what) in [
        ("CREATE TABLE outbox_dead (id INT PRIMARY KEY)", "the table outbox_dead lacks `attempts smallint"),
        ("CREATE TABLE outbox_sent_messages (id INT PRIMARY KEY)", "the table outbox_sent_messages is no view"),
        ("CREATE VIEW outbox_pending AS SELECT 1 AS id", "the view outbox_pending is no table"),
        (
            "CREATE TABLE outbox_migrations (id INT PRIMARY KEY)",
            "the table outbox_migrations is no record of migrations",
        ),
    ] {
        let database = Database::create_empty(flavor).await?;
        database.execute(own).await?;
        let before = made(&database).await?;
        let refused = migrate(&database).await.err().context("a table of the service's is taken over")?;
        ensure!(matches!(refused, MigrateError::Taken { .. }), "{refused}");
        ensure!(refused.to_string().contains(what), "{refused}");
        assert_eq!(made(&database).await?, before);
    }
    let database = Database::create_empty(flavor).await?;
    database.execute("CREATE TABLE outbox_of_another_library (id INT PRIMARY KEY)").await?;
    migrate(&database).await?;
    Ok(())
}

async fn a_privilege_that_is_lacking_is_named_before_anything_is_changed(flavor: Flavor) -> Result<()> {
    const GRANTS: &str = include_str!("../../../../deploy/grants/migrator.sql");
    let database = Database::create_empty(flavor).await?;
    for (grant, without, lacking) in [
        ("GRANT CREATE, ALTER, DROP, INDEX ON inbox_dead      TO 'outbox_migrator'@'%';", "", "CREATE command denied"),
        ("CREATE, ALTER, DROP, INDEX, INSERT ON outbox_head", "CREATE ON outbox_head", "INSERT command denied"),
        ("CREATE, ALTER, DROP, INDEX, SELECT ON outbox_sent ", "CREATE ON outbox_sent ", "SELECT command denied"),
        (
            "CREATE, CREATE VIEW, DROP, SHOW VIEW, SELECT ON outbox_claimed",
            "SELECT, CREATE ON outbox_claimed",
            "CREATE VIEW command denied",
        ),
    ] {
        ensure!(GRANTS.contains(grant), "{grant}");
        let user = format!("u{}", &Uuid::now_v7().simple().to_string()[20..]);
        database.execute(&format!("CREATE USER '{user}'@'%'")).await?;
        database.execute(&GRANTS.replace(grant, without).replace("outbox_migrator", &user)).await?;
        let url = database.url().replacen("root@", &format!("{user}@"), 1);
        let refused = outbox_core::migrate(&mut MySqlConnection::connect(&url).await?).await;
        let refused = refused.err().context("it is not needed")?;
        ensure!(matches!(refused, MigrateError::Denied { .. }) && refused.to_string().contains(lacking), "{refused}");
        assert_eq!(made(&database).await?, Vec::<String>::new());
        database.execute(&format!("DROP USER '{user}'@'%'")).await?;
    }
    Ok(())
}

async fn a_table_that_has_to_be_copied_is_left_alone_and_its_size_told(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    database.execute("ALTER TABLE outbox_messages ROW_FORMAT = COMPRESSED").await?;
    commit(&database).await?;
    let mut connection = database.connect().await?;
    // MariaDB would then copy it in spite of the statement's algorithm.
    sqlx::raw_sql("SET SESSION old_alter_table = 1").execute(&mut connection).await?;
    let refused = outbox_core::migrate_with(&mut connection, &NEXT).await.err().context("it is copied")?;
    ensure!(matches!(refused, MigrateError::Copies { mebibytes: 1.., .. }), "{refused}");
    let by_hand = NEXT[0].2.replace(", ALGORITHM = INSTANT", "");
    database.execute(&by_hand).await?;
    upgrade::to_next(&database).await
}

async fn what_another_tool_applies_is_all_that_the_check_wants(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    let script = migration_script(0);
    for statement in script.split_inclusive(";\n") {
        database.execute(statement).await.context(statement.to_owned())?;
    }
    check_schema(&mut database.connect().await?).await?;
    assert_eq!(made(&database).await?, reference(flavor).await?);
    migrate(&database).await?;
    commit(&database).await?;
    assert_eq!(migration_script(SCHEMA_VERSION), "");
    Ok(())
}

async fn tables_without_their_record_are_adopted_if_they_are_the_same(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    let baseline = async || outbox_core::baseline(&mut database.connect().await?).await.map_err(anyhow::Error::from);
    database.execute("DROP TABLE outbox_migrations").await?;
    let view = MIGRATOR.iter().find(|it| it.description == "listed_messages").context("no view")?;
    let new = view.sql.as_str().replace("CREATE VIEW", "CREATE OR REPLACE VIEW");
    let old = new.replace("trace_id\n", "trace\n");
    for (edit, undo, what) in [
        (&*old, &*new, "the view outbox_listed_messages lacks `trace_id` and has `trace`"),
        (
            "ALTER TABLE outbox_dead DROP KEY outbox_dead_key",
            "ALTER TABLE outbox_dead ADD KEY outbox_dead_key (lane, holds_key, key_hash, id)",
            "the table outbox_dead lacks `key outbox_dead_key (lane,holds_key,key_hash,id)`",
        ),
        (
            "ALTER TABLE outbox_head MODIFY low INT NOT NULL DEFAULT 0",
            "ALTER TABLE outbox_head MODIFY low BIGINT UNSIGNED NOT NULL DEFAULT 0",
            "the table outbox_head lacks `low bigint unsigned not null default 0` and has `low int not null default 0`",
        ),
        (
            "ALTER TABLE outbox_head ENGINE = MyISAM",
            "ALTER TABLE outbox_head ENGINE = InnoDB",
            "the table outbox_head lacks `engine innodb` and has `engine myisam`",
        ),
        (
            "RENAME TABLE inbox_dead TO hidden",
            "RENAME TABLE hidden TO inbox_dead",
            "the table inbox_dead does not exist",
        ),
    ] {
        database.execute(edit).await?;
        let refused = baseline().await.err().context("other tables are adopted")?.to_string();
        ensure!(refused.ends_with(what), "{refused}");
        ensure!(check_schema(&mut database.connect().await?).await.is_err(), "it is recorded");
        database.execute(undo).await?;
    }
    baseline().await?;
    check_schema(&mut database.connect().await?).await?;
    database.execute("UPDATE outbox_migrations SET checksum = 'other'").await?;
    baseline().await?;
    check_schema(&mut database.connect().await?).await?;
    Ok(())
}

async fn programs_of_the_release_before_go_on_after_an_upgrade(flavor: Flavor) -> Result<()> {
    let database = Database::create(flavor).await?;
    upgrade::to_next(&database).await?;
    migrate(&database).await?;
    let pool = MySqlPoolOptions::new().connect(&database.url_as(Account::Owner)?).await?;
    MIGRATOR.run(&pool).await?;
    let mut connection = database.connect().await?;
    check_schema(&mut connection).await?;
    let inbox = Inbox::new("billing")?;
    let id = Uuid::now_v7();
    for expected in [true, false] {
        let mut tx = connection.begin().await?;
        enqueue(&mut tx).await?;
        Outbox::new().enqueue(&mut tx, Message::new("orders", "{}").delay(PATIENCE)).await?;
        ensure!(matches!(inbox.claim(&mut tx, id).await?, Claim::First(())) == expected);
        tx.commit().await?;
    }
    ensure!(outbox_core::test::Drain::new().run(&pool).await?.len() == 2);
    Ok(())
}

async fn the_session_of_the_caller_does_not_matter_and_stays(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    let mut connection = database.connect_as_admin().await?;
    let odd = "SET SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,TRADITIONAL,PIPES_AS_CONCAT', SESSION autocommit = 0, \
               SESSION lock_wait_timeout = 77, SESSION innodb_lock_wait_timeout = 33, SESSION default_storage_engine = \
               MyISAM, NAMES latin1, SESSION sql_select_limit = 7, SESSION group_concat_max_len = 4, SESSION \
               completion_type = 2 /*!80000 , SESSION transaction_read_only = 1, SESSION max_execution_time = 1000 */ \
               /*M! , SESSION tx_read_only = 1, SESSION max_statement_time = 1, SESSION sql_if_exists = 1 */";
    sqlx::raw_sql(odd).execute(&mut connection).await?;
    if flavor == Flavor::MySql {
        let own = "SET SESSION sql_require_primary_key = ON, SESSION sql_generate_invisible_primary_key = ON, \
                   SESSION explicit_defaults_for_timestamp = OFF";
        sqlx::raw_sql(own).execute(&mut connection).await?;
    }
    let settings = "SELECT CAST(CONCAT_WS(';', @@SESSION.sql_mode, @@SESSION.autocommit, @@SESSION.lock_wait_timeout, \
                    @@SESSION.innodb_lock_wait_timeout, @@SESSION.completion_type, \
                    @@SESSION./*!80000 transaction_read_only *//*M! tx_read_only */, \
                    @@SESSION./*!80000 max_execution_time *//*M! max_statement_time */) AS CHAR)";
    let before: String = sqlx::query_scalar(settings).fetch_one(&mut connection).await?;
    outbox_core::migrate(&mut connection).await?;
    let after: String = sqlx::query_scalar(settings).fetch_one(&mut connection).await?;
    assert_eq!(before, after);
    // Every key of every table is compared.
    database.execute("DELETE FROM outbox_migrations").await?;
    outbox_core::baseline(&mut connection).await?;
    check_schema(&mut connection).await?;
    assert_eq!(made(&database).await?, reference(flavor).await?);
    Ok(())
}

async fn sqlx_applies_the_same_migrations(flavor: Flavor) -> Result<()> {
    let database = Database::create_empty(flavor).await?;
    MIGRATOR.run(&MySqlPoolOptions::new().connect(&database.url_as(Account::Owner)?).await?).await?;
    check_schema(&mut database.connect().await?).await?;
    database.execute("UPDATE outbox_migrations SET success = FALSE WHERE version = 4").await?;
    migrate(&database).await?;
    check_schema(&mut database.connect().await?).await?;
    Ok(())
}
