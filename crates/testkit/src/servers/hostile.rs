//! The worst legal values of what a session inherits: the hostile world of `./dev test --servers hostile`. It has the
//! settings of the [odd world](super::odd) as well.
//!
//! All sessions get the values of `GLOBAL`, with which a service can work. `init_connect` gives the accounts of relays
//! and operators those of `OWN`, with which no program can work that leaves them alone. The tests' `root` skips
//! `init_connect`.

use std::path::Path;

use anyhow::Result;

use super::Flavor;

const GLOBAL: &[(&str, &str)] = &[
    ("lock_wait_timeout", "2"),
    ("net_read_timeout", "5"),
    ("net_write_timeout", "5"),
    ("group_concat_max_len", "4"),
    ("max_sort_length", "64"),
    ("div_precision_increment", "0"),
    ("max_error_count", "0"),
    ("max_length_for_sort_data", "4"),
    ("eq_range_index_dive_limit", "1"),
    ("optimizer_search_depth", "0"),
    ("join_buffer_size", "128"),
    ("tmp_table_size", "16384"),
    ("big_tables", "1"),
    ("low_priority_updates", "1"),
    ("old_alter_table", "1"),
    ("unique_checks", "0"),
    ("lc_time_names", "'ja_JP'"),
];
const GLOBAL_MYSQL: &[(&str, &str)] = &[
    ("sql_generate_invisible_primary_key", "ON"),
    ("binlog_row_image", "'MINIMAL'"),
    ("session_track_state_change", "ON"),
    ("session_track_gtids", "'ALL_GTIDS'"),
    ("default_collation_for_utf8mb4", "utf8mb4_general_ci"),
    // MySQL's manual advises it on few processors.
    ("innodb_log_writer_threads", "OFF"),
];
const GLOBAL_MARIADB: &[(&str, &str)] = &[
    ("idle_transaction_timeout", "30"),
    ("in_predicate_conversion_threshold", "2"),
    ("old_mode", "'NO_DUP_KEY_WARNINGS_WITH_IGNORE,ZERO_DATE_TIME_CAST'"),
];

const OWN: &[(&str, &str)] = &[
    ("sql_select_limit", "0"),
    ("completion_type", "'RELEASE'"),
    ("lock_wait_timeout", "1"),
    ("net_read_timeout", "1"),
    ("net_write_timeout", "1"),
    ("sql_safe_updates", "1"),
    ("sql_auto_is_null", "1"),
    ("sql_big_selects", "0"),
    ("max_join_size", "1"),
    ("foreign_key_checks", "0"),
    ("sql_buffer_result", "1"),
    ("sql_notes", "0"),
];
const OWN_MYSQL: &[(&str, &str)] = &[
    ("transaction_read_only", "1"),
    ("max_execution_time", "1"),
    ("transaction_isolation", "'SERIALIZABLE'"),
    ("use_secondary_engine", "'FORCED'"),
    ("sql_mode", "'ANSI,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH,NO_UNSIGNED_SUBTRACTION'"),
];
const OWN_MARIADB: &[(&str, &str)] = &[
    ("tx_read_only", "1"),
    ("max_statement_time", "0.05"),
    ("tx_isolation", "'SERIALIZABLE'"),
    ("idle_transaction_timeout", "1"),
    ("idle_write_transaction_timeout", "1"),
    ("idle_readonly_transaction_timeout", "1"),
    ("tmp_disk_table_size", "1024"),
    ("sql_if_exists", "1"),
    ("sql_mode", "'ORACLE,NO_BACKSLASH_ESCAPES,HIGH_NOT_PRECEDENCE,SIMULTANEOUS_ASSIGNMENT,EMPTY_STRING_IS_NULL'"),
];

/// The settings that take effect only at the start.
pub(super) const fn args(flavor: Flavor) -> &'static [&'static str] {
    match flavor {
        Flavor::MySql => &[],
        Flavor::MariaDb => &["--query-cache-type=1", "--query-cache-size=1M"],
    }
}

/// Writes the statements of the server's start, for `--init-file`: some variables have no option.
pub(super) fn write(flavor: Flavor, file: &Path) -> Result<()> {
    let (global, own) = match flavor {
        Flavor::MySql => (GLOBAL_MYSQL, OWN_MYSQL),
        Flavor::MariaDb => (GLOBAL_MARIADB, OWN_MARIADB),
    };
    let global = GLOBAL.iter().chain(global).map(|(name, value)| format!("SET GLOBAL {name} = {value};\n"));
    // The limit of 0 comes last: with it no query has an answer.
    let own: Vec<_> = OWN.iter().chain(own).rev().map(own_value).collect();
    // No quotation marks: with ANSI they are those of names.
    let own = format!("SET GLOBAL init_connect = '{}';\n", own.join("; ").replace('\'', "''"));
    Ok(std::fs::write(file, global.chain([own]).collect::<String>())?)
}

fn own_value((name, value): &(&str, &str)) -> String {
    let chosen = format!("IF(USER() LIKE 'outbox_relay%' OR USER() LIKE 'outbox_operator%', {value}, @@{name})");
    // A number of two types would be a decimal, which no variable takes.
    let is_whole = value.bytes().all(|byte| byte.is_ascii_digit());
    let chosen = if is_whole { format!("CAST({chosen} AS UNSIGNED)") } else { chosen };
    format!("SET SESSION {name} = {chosen}")
}
