//! Variables that a session inherits from its server, from `init_connect` or from a handler: each is decided.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Result, ensure};
use outbox_core::{
    Message, Outbox, check_schema,
    sqlx::{self, AssertSqlSafe, Connection as _, MySqlConnection},
    store::{
        claim::{self, Look, read},
        session,
        settle::{
            Settlement,
            work::{self, Finish},
        },
    },
};
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    servers::{Flavor, PATIENCE},
};

use crate::{
    prepare::run,
    protocol::{claim, with_messages},
};

on_both_databases!(
    a_session_of_a_relay_inherits_nothing,
    a_cut_answer_is_an_error_and_no_missing_row,
    a_service_may_have_any_settings,
);

/// Set for each session of a relay, a worker, a command or a lease, and again after each handler.
const SET: &[&str] = &[
    "sql_mode",
    "character_set_client",
    "character_set_connection",
    "character_set_results",
    "collation_connection",
    "time_zone",
    "innodb_lock_wait_timeout",
    "lock_wait_timeout",
    "completion_type",
    "net_read_timeout",
    "net_write_timeout",
    "sql_select_limit",
    "sql_big_selects",
    "sql_safe_updates",
    "sql_auto_is_null",
    "sql_buffer_result",
    "foreign_key_checks",
    "unique_checks",
    "group_concat_max_len",
    "max_sort_length",
    "div_precision_increment",
    "max_execution_time",
    "use_secondary_engine",
    "max_statement_time",
    "idle_*transaction_timeout",
    "tmp_disk_table_size",
    "query_cache_type",
    "timestamp",
];

/// Set for each session, and after a handler with the end of its transaction: it can change none of them for this one.
const SET_BETWEEN: &[&str] =
    &["autocommit", "transaction_isolation", "transaction_read_only", "tx_isolation", "tx_read_only", "wait_timeout"];

/// The variables that are not set, with the reason. `*` is any text.
const LEFT: &[(&str, &[&str])] = &[
    (
        "max_join_size does nothing with sql_big_selects; the others come with USE",
        &["max_join_size", "character_set_database", "collation_database"],
    ),
    ("read by the statements that depend on it", &["auto_increment_*", "max_allowed_packet"]),
    (
        "it changes the plan of a statement or its memory, and no answer",
        &[
            "optimizer_*",
            "*_buffer_size",
            "*_buff_size",
            "*_alloc_block_size",
            "*_prealloc_size",
            "join_*",
            "*histogram_*",
            "analyze_*",
            "tmp_table_size",
            "tmp_memory_table_size",
            "max_heap_table_size",
            "max_tmp_tables",
            "internal_tmp_mem_storage_engine",
            "big_tables",
            "eq_range_index_dive_limit",
            "range_optimizer_max_mem_size",
            "max_seeks_for_key",
            "max_length_for_sort_data",
            "max_rowid_filter_size",
            "use_stat_tables",
            "expensive_subquery_limit",
            "in_predicate_conversion_threshold",
            "secondary_engine_cost_threshold",
            "enable_secondary_engine_statistics",
            "innodb_parallel_read_threads",
            "query_cache_*",
            "connection_memory_chunk_size",
        ],
    ),
    (
        "it changes a log, a trace, a plan's or an error's text; numbers decide",
        &[
            "*log_slow*",
            "log_*",
            "*slow_*log*",
            "*long_query_time*",
            "min_examined_row_limit",
            "profiling*",
            "sql_log_off",
            "note_verbosity",
            "progress_report_time",
            "sql_notes",
            "sql_warnings",
            "max_error_count",
            "session_track_*",
            "terminology_use_previous",
            "lc_messages",
            "print_identified_with_as_hex",
            "end_markers_in_json",
            "explain_*",
            "sql_quote_show_create",
            "show_*",
            "information_schema_stats_expiry",
        ],
    ),
    (
        "no statement has such a function, clause, table or engine",
        &[
            "block_encryption_mode",
            "default_week_format",
            "lc_time_names",
            "cte_max_recursion_depth",
            "max_recursive_iterations",
            "max_sp_recursion_depth",
            "system_versioning_*",
            "windowing_use_high_precision",
            "max_points_in_geometry",
            "generated_random_password_length",
            "old_passwords",
            "select_into_*",
            "low_priority_updates",
            "max_*delayed_threads",
            "keep_files_on_create",
            "column_compression_*",
            "standard_compliant_cte",
            "updatable_views_with_limit",
            "character_set_filesystem",
            "enable_cascade_triggers",
            "check_constraint_checks",
            "xa_detach_on_prepare",
            "transaction_allow_batching",
            "rand_seed*",
            "innodb_table_locks",
            "innodb_ft_*",
            "myisam_*",
            "aria_*",
            "deadlock_*",
            "external_table_*",
            "interactive_timeout",
            "identity",
            "last_insert_id",
        ],
    ),
    (
        "the statement or the column names it: collation of a comparison, flags of a pattern, level of isolation",
        &["default_collation_for_utf8mb4", "default_regex_flags", "innodb_snapshot_isolation"],
    ),
    (
        "migrations name engine, format, defaults and primary key",
        &[
            "default_*storage_engine",
            "storage_engine",
            "alter_algorithm",
            "old_alter_table",
            "character_set_server",
            "collation_server",
            "explicit_defaults_for_timestamp",
            "sql_require_primary_key",
            "sql_generate_invisible_primary_key",
            "innodb_strict_mode",
            "innodb_ddl_*",
            "innodb_tmpdir",
            "innodb_compression_default",
            "innodb_default_encryption_key_id",
            "default_table_encryption",
            "restrict_fk_on_non_standard_key",
            "sql_if_exists",
        ],
    ),
    (
        "a syntax or a transport of older or larger servers, the same answer",
        &["old", "old_mode", "tcp_nodelay", "thread_pool_priority", "net_buffer_length", "net_retry_count"],
    ),
    (
        "the server's business: replication and clusters",
        &[
            "*binlog_*",
            "gtid_*",
            "sql_log_bin",
            "wsrep_*",
            "group_replication_consistency",
            "server_id",
            "pseudo_*",
            "original_*",
            "immediate_server_version",
            "require_row_format",
            "rbr_exec_mode",
            "skip_*replication",
            "sql_slave_skip_counter",
            "default_master_connection",
            "max_relay_log_size",
        ],
    ),
    (
        "the server's business: quotas, each with an error that names it",
        &[
            "max_user_connections",
            "connection_memory_limit",
            "global_connection_memory_tracking",
            "parser_max_mem_size",
            "max_session_mem_used",
            "enforce_storage_engine",
        ],
    ),
    ("refused without an option of the client that the driver does not have", &["resultset_metadata"]),
    ("MySQL cannot take it back; the handler's own next INSERT uses it up", &["insert_id"]),
];

/// The worst values of the variables in [`SET`] and [`SET_BETWEEN`].
const HOSTILE: &str = "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY; SET NAMES latin1, timestamp = \
                       1, SESSION time_zone = '+05:00', SESSION innodb_lock_wait_timeout = 1, SESSION \
                       lock_wait_timeout = 1, SESSION completion_type = 2, SESSION net_read_timeout = 1, SESSION \
                       net_write_timeout = 1, SESSION sql_select_limit = 1, SESSION max_join_size = 1, SESSION \
                       sql_safe_updates = 1, SESSION sql_auto_is_null = 1, SESSION sql_buffer_result = 1, SESSION \
                       foreign_key_checks = 0, SESSION unique_checks = 0, SESSION group_concat_max_len = 4, SESSION \
                       max_sort_length = 64, SESSION div_precision_increment = 0, SESSION wait_timeout = 7, SESSION \
                       sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH' /*!80013 , \
                       SESSION max_execution_time = 1, SESSION use_secondary_engine = FORCED */ /*M! , SESSION \
                       max_statement_time = 2, SESSION idle_transaction_timeout = 2, SESSION \
                       idle_readonly_transaction_timeout = 2, SESSION idle_write_transaction_timeout = 2, SESSION \
                       tmp_disk_table_size = 1024, SESSION query_cache_type = OFF */";

/// Whether a name has the form of a pattern.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some((_, after)) = left.split_once(part) else { return false };
        left = after;
    }
    left.ends_with(end)
}

async fn variables(db: &mut MySqlConnection) -> Result<BTreeMap<String, String>> {
    let rows: Vec<(String, String)> = sqlx::query_as("SHOW SESSION VARIABLES").fetch_all(db).await?;
    Ok(rows.into_iter().collect())
}

/// The variables that a session can set.
async fn settable(flavor: Flavor) -> Result<BTreeSet<String>> {
    const NO_SESSION_VARIABLE: [&str; 2] = ["1229", "1238"];
    let database = Database::create_empty(flavor).await?;
    let mut db = database.connect_as_admin().await?;
    let mut settable = BTreeSet::new();
    for name in variables(&mut db).await?.into_keys() {
        let set = format!("SET SESSION {name} = @@SESSION.{name}");
        let refused = sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut db).await.err();
        let number = refused.and_then(|error| {
            let error = error.into_database_error()?;
            Some(error.downcast_ref::<sqlx::mysql::MySqlDatabaseError>().number().to_string())
        });
        if number.is_none_or(|number| !NO_SESSION_VARIABLE.contains(&&*number)) {
            settable.insert(name.to_lowercase());
        }
    }
    Ok(settable)
}

/// A new version of a server may have new variables: decide them above.
#[tokio::test]
async fn every_variable_of_a_session_is_decided() -> Result<()> {
    let mut all = settable(Flavor::MySql).await?;
    all.append(&mut settable(Flavor::MariaDb).await?);
    ensure!(all.len() > 250, "only {} variables", all.len());
    let decided: Vec<&str> =
        SET.iter().chain(SET_BETWEEN).chain(LEFT.iter().flat_map(|(_, names)| *names)).copied().collect();
    let new: Vec<_> = all.iter().filter(|name| !decided.iter().any(|pattern| matches(pattern, name))).collect();
    ensure!(new.is_empty(), "not decided: {new:?}");
    let stale: Vec<_> = decided.iter().filter(|pattern| !all.iter().any(|name| matches(pattern, name))).collect();
    ensure!(stale.is_empty(), "no server has {stale:?}");
    Ok(())
}

/// The variables of these patterns, without those that move by themselves.
async fn values(db: &mut MySqlConnection, patterns: &[&[&str]]) -> Result<BTreeMap<String, String>> {
    let is_one = |name: &str| patterns.concat().iter().any(|pattern| matches(pattern, name));
    let mut values = variables(db).await?;
    values.retain(|name, _| is_one(name) && !["timestamp", "rand_seed1"].contains(&&**name));
    let now: String = sqlx::query_scalar("SELECT CAST(UTC_DATE() AS CHAR)").fetch_one(db).await?;
    ensure!(now.as_str() > "2020", "the time is {now}");
    Ok(values)
}

async fn a_session_of_a_relay_inherits_nothing(flavor: Flavor) -> Result<()> {
    let (database, mut stock) = with_messages(flavor, 1).await?;
    let expected = values(&mut stock, &[SET, SET_BETWEEN]).await?;
    // An account without any privilege on the server.
    let mut db = database.connect_as(Account::Worker).await?;
    sqlx::raw_sql(HOSTILE).execute(&mut db).await?;
    sqlx::raw_sql("SET SESSION autocommit = 0").execute(&mut db).await?;
    session::prepare(&mut db).await?;
    assert_eq!(values(&mut db, &[SET, SET_BETWEEN]).await?, expected);

    let lease = claim(&mut stock, 7, &[1]).await?;
    let mut during = values(&mut stock, &[SET]).await?;
    work::begin(&mut db, Duration::from_secs(60)).await?;
    during.insert("sql_mode".to_owned(), sqlx::query_scalar("SELECT @outbox_sql_mode").fetch_one(&mut db).await?);
    for undone in [false, true] {
        sqlx::raw_sql(HOSTILE).execute(&mut db).await?;
        let open = if undone { work::undo(&mut db, None).await? } else { work::keep(&mut db, None).await? };
        ensure!(open, "the transaction has ended");
        assert_eq!(values(&mut db, &[SET]).await?, during);
    }
    sqlx::raw_sql(HOSTILE).execute(&mut db).await?;
    let settlement = Settlement { sent: vec![(1, "worker".to_owned())], ..Settlement::default() };
    assert_eq!(work::finish(&mut db, None, lease, &settlement).await?, Finish::Committed);
    assert_eq!(values(&mut db, &[SET, SET_BETWEEN]).await?, expected);
    Ok(())
}

/// Whatever cuts it.
async fn a_cut_answer_is_an_error_and_no_missing_row(flavor: Flavor) -> Result<()> {
    let (_database, mut db) = with_messages(flavor, 3).await?;
    let look = Look { limit: 10, ..Look::default() };
    assert_eq!(claim::look(&mut db, &look).await?.fresh.len(), 3);
    assert_eq!(read::messages(&mut db, &[1, 2, 3, 4]).await?.len(), 3);
    for limit in [0, 1, 2, 4, 5] {
        let cut = format!("SET SESSION sql_select_limit = {limit}");
        sqlx::raw_sql(AssertSqlSafe(cut)).execute(&mut db).await?;
        ensure!(claim::look(&mut db, &look).await.is_err(), "a look of {limit} rows has an answer");
        ensure!(limit > 2 || read::messages(&mut db, &[1, 2, 3]).await.is_err(), "{limit} messages were read");
        ensure!(limit == 0 || check_schema(&mut db).await.is_ok(), "a limit of {limit} cuts the list of migrations");
    }
    Ok(())
}

/// The enqueue runs in the service's own session.
async fn a_service_may_have_any_settings(flavor: Flavor) -> Result<()> {
    let common = [
        "sql_select_limit = 0",
        "sql_mode = 'HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH,NO_AUTO_VALUE_ON_ZERO,NO_UNSIGNED_SUBTRACTION'",
        "completion_type = 1",
        "max_sort_length = 64",
        "sql_auto_is_null = 1",
        "max_join_size = 1",
        "sql_safe_updates = 1",
        "unique_checks = 0",
    ];
    let own: &[&str] = match flavor {
        Flavor::MySql => &["max_execution_time = 1", "use_secondary_engine = FORCED"],
        Flavor::MariaDb => &[
            "sql_mode = 'EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT,ANSI,NO_BACKSLASH_ESCAPES'",
            "max_statement_time = 1",
            "unique_checks = 0, SESSION foreign_key_checks = 0",
        ],
    };
    let database = Database::create(flavor).await?;
    for setting in common.iter().chain(own) {
        let mut db = database.connect_as(Account::Service).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("SET SESSION {setting}"))).execute(&mut db).await?;
        let outbox = Outbox::new();
        let mut tx = db.begin().await?;
        outbox.enqueue(&mut tx, Message::new("orders", "").key("")).await?;
        outbox.enqueue(&mut tx, Message::new("orders", "").key("k").sequenced()).await?;
        outbox.enqueue(&mut tx, Message::new("orders", "").header("h", "").delay(PATIENCE)).await?;
        run(&mut tx, outbox.prepare(Message::new("orders", "").key(""))?.statements).await?;
        tx.commit().await?;
        let sound = "SELECT COUNT(*) FROM outbox_messages LEFT JOIN outbox_pending p USING (id) LEFT \
                     JOIN outbox_delayed d USING (id) \
                     WHERE payload = '' AND COALESCE(p.id, d.id) > 0 AND (message_key IS NULL) = (d.id IS NOT NULL)";
        ensure!(database.number(sound).await? == 4, "with {setting}");
        database.execute("DELETE FROM outbox_messages; DELETE FROM outbox_pending; DELETE FROM outbox_delayed").await?;
    }
    // Without a transaction it is refused, also where every statement opens one.
    let mut db = database.connect_as(Account::Service).await?;
    sqlx::raw_sql("SET SESSION autocommit = 0, SESSION sql_select_limit = 0").execute(&mut db).await?;
    let enqueued = Outbox::new().enqueue(&mut db, Message::new("orders", "")).await;
    ensure!(enqueued.is_err(), "{enqueued:?}");
    Ok(())
}
