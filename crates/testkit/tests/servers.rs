//! Each server starts, answers, dies, comes back with its data, and leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "a helper of a test may fail like the test")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sqlx::{Connection, MySqlConnection};
use testkit::servers::{
    Alertmanager, Flavor, Kafka, MySql, MySqlOptions, PATIENCE, Prometheus, RabbitMq, create_topic, free_port,
    fresh_database, until,
};

/// Whether a process exists and is more than an entry that nobody has read the exit status of.
fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z")
}

async fn comes_back_with_its_data(flavor: Flavor) {
    let mut server = MySqlOptions::new(flavor).buffer_pool_mib(128).start().await.unwrap();
    let url = fresh_database(&server.url()).await.unwrap();
    let mut connection = MySqlConnection::connect(&url).await.unwrap();
    sqlx::query("CREATE TABLE t (id INT PRIMARY KEY)").execute(&mut connection).await.unwrap();
    sqlx::query("INSERT INTO t VALUES (1)").execute(&mut connection).await.unwrap();

    let first = server.pid().unwrap();
    server.kill().unwrap();
    assert!(!is_alive(first));
    assert!(MySqlConnection::connect(&url).await.is_err());
    server.restart().await.unwrap();
    assert_ne!(server.pid().unwrap(), first);

    let mut connection = MySqlConnection::connect(&url).await.unwrap();
    let rows: Vec<(i32,)> = sqlx::query_as("SELECT id FROM t").fetch_all(&mut connection).await.unwrap();
    assert_eq!(rows, [(1,)]);

    let folder = server.folder().unwrap().to_path_buf();
    let pid = server.pid().unwrap();
    drop(server);
    assert!(!is_alive(pid) && !folder.exists());
}

#[tokio::test]
async fn mysql_comes_back_with_its_data_after_a_kill() {
    comes_back_with_its_data(Flavor::MySql).await;
}

#[tokio::test]
async fn mariadb_comes_back_with_its_data_after_a_kill() {
    comes_back_with_its_data(Flavor::MariaDb).await;
}

#[tokio::test]
async fn a_paused_mysql_answers_only_after_it_is_resumed() {
    let mut server = MySqlOptions::new(Flavor::MySql).buffer_pool_mib(128).start().await.unwrap();
    let mut connection = MySqlConnection::connect(&server.url()).await.unwrap();
    server.pause().unwrap();
    {
        let mut answer = std::pin::pin!(sqlx::query("SELECT 1").execute(&mut connection));
        tokio::time::timeout(Duration::from_millis(300), &mut answer).await.unwrap_err();
        server.resume().unwrap();
        answer.await.unwrap();
    }
    server.stop().await.unwrap();
    assert!(server.pid().is_err());
}

#[tokio::test]
async fn mysql_is_durable_and_logs_rows() {
    let server = MySql::start(Flavor::MySql).await.unwrap();
    let mut connection = MySqlConnection::connect(&server.url()).await.unwrap();
    let settings: (u64, u64, i64, String) = sqlx::query_as(
        "SELECT @@innodb_flush_log_at_trx_commit, @@sync_binlog, @@log_bin, CAST(@@binlog_format AS CHAR)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(settings, (1, 1, 1, "ROW".to_owned()));
}

/// Checks the settings that a service's session gets. `east`: the zone's possible distances from UTC, in minutes.
async fn is_odd(flavor: Flavor, east: &[i64]) {
    let server = MySqlOptions::new(flavor).buffer_pool_mib(128).odd().start().await.unwrap();
    let mut connection = MySqlConnection::connect(&fresh_database(&server.url()).await.unwrap()).await.unwrap();
    sqlx::raw_sql("SET time_zone = 'SYSTEM'").execute(&mut connection).await.unwrap();
    let sql = "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW()), CAST(@@autocommit AS SIGNED), \
               CAST(@@lower_case_table_names AS SIGNED), \
               CAST(@@max_allowed_packet AS SIGNED), CAST(@@wait_timeout AS SIGNED), \
               CAST(@@character_set_server AS CHAR)";
    let settings: (i64, i64, i64, i64, i64, String) = sqlx::query_as(sql).fetch_one(&mut connection).await.unwrap();
    assert!(east.contains(&settings.0), "{settings:?}");
    assert_eq!(settings, (settings.0, 0, 1, 4 << 20, 10, "latin1".to_owned()));
    let mode: String = sqlx::query_scalar("SELECT @@sql_mode").fetch_one(&mut connection).await.unwrap();
    for word in ["ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "TRADITIONAL", "PIPES_AS_CONCAT"] {
        assert!(mode.contains(word), "{mode}");
    }
    let without_key = sqlx::raw_sql("CREATE TABLE t (id INT)").execute(&mut connection).await;
    assert!(without_key.is_err(), "a table without a primary key was made");
}

/// The tests' administrator has the global values alone. An account that `init_connect` failed for could not log in.
#[tokio::test]
async fn a_hostile_server_spares_its_administrator() {
    for flavor in [Flavor::MySql, Flavor::MariaDb] {
        let server = MySqlOptions::new(flavor).buffer_pool_mib(128).hostile().start().await.unwrap();
        let mut root = MySqlConnection::connect(&server.url()).await.unwrap();
        sqlx::raw_sql("CREATE USER outbox_relay@'%'").execute(&mut root).await.unwrap();
        sqlx::raw_sql("COMMIT").execute(&mut root).await.unwrap();
        let of = "SELECT CAST(CONCAT_WS(' ', @@group_concat_max_len, @@completion_type) AS CHAR) LIMIT 1";
        let seen: String = sqlx::query_scalar(of).fetch_one(&mut root).await.unwrap();
        assert_eq!(seen, "4 NO_CHAIN");
        let mut relay = MySqlConnection::connect(&server.url().replace("root", "outbox_relay")).await.unwrap();
        let seen: String = sqlx::query_scalar(of).fetch_one(&mut relay).await.unwrap();
        assert_eq!(seen, "4 RELEASE");
        assert!(sqlx::query("SELECT 1").fetch_optional(&mut relay).await.unwrap().is_none(), "sql_select_limit = 0");
    }
}

#[tokio::test]
async fn an_odd_mysql_is_odd() {
    is_odd(Flavor::MySql, &[540]).await;
}

#[tokio::test]
async fn an_odd_mariadb_is_odd() {
    is_odd(Flavor::MariaDb, &[60, 120]).await;
}

#[tokio::test]
async fn kafka_keeps_its_topics_over_a_kill() {
    let mut server = Kafka::with(&[("message.max.bytes", "200000")]).await.unwrap();
    create_topic(&server.bootstrap(), "orders", 3).await.unwrap();
    create_topic(&server.bootstrap(), "orders", 3).await.unwrap_err();
    server.kill().unwrap();
    server.restart().await.unwrap();
    create_topic(&server.bootstrap(), "orders", 3).await.unwrap_err();
    create_topic(&server.bootstrap(), "invoices", 1).await.unwrap();
}

#[tokio::test]
async fn rabbitmq_takes_commands_and_leaves_no_helpers_behind() {
    let mut server = RabbitMq::start().await.unwrap();
    server.kill().unwrap();
    server.restart().await.unwrap();
    let status = server.ctl(&["list_connections"]).await.unwrap();
    assert!(status.contains("Listing connections"), "{status}");
    server.ctl(&["no_such_command"]).await.unwrap_err();

    let folder = server.folder().unwrap().to_path_buf();
    drop(server);
    assert!(!folder.exists());
    let nothing_left = until(PATIENCE, "the helpers to end", async || {
        let left: Vec<_> = processes_naming(&folder);
        anyhow::ensure!(left.is_empty(), "still there: {left:?}");
        Ok(())
    });
    nothing_left.await.unwrap();
}

/// The processes that have `folder` in their command line.
fn processes_naming(folder: &Path) -> Vec<String> {
    let name = folder.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let commands = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    commands
        .map(|command| String::from_utf8_lossy(&command).replace('\0', " "))
        .filter(|text| text.contains(&name))
        .collect()
}

const VICTIM: &str = "OUTBOX_TEST_VICTIM";

#[tokio::test]
#[expect(clippy::print_stdout, reason = "the other process reads this line")]
async fn a_server_dies_with_the_process_that_started_it() {
    if std::env::var_os(VICTIM).is_some() {
        let server = MySqlOptions::new(Flavor::MySql).buffer_pool_mib(128).start().await.unwrap();
        println!("\nstarted {} {}", server.pid().unwrap(), server.folder().unwrap().display());
        std::future::pending::<()>().await;
    }
    let mut victim = Command::new(std::env::current_exe().unwrap());
    victim.args(["--exact", "a_server_dies_with_the_process_that_started_it", "--nocapture"]).env(VICTIM, "1");
    let mut victim = victim.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("started ")).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let pid = words[1].parse().unwrap();
    let folder = Path::new(words[2]);
    assert!(is_alive(pid) && folder.is_dir());

    victim.kill().unwrap();
    victim.wait().unwrap();
    let gone = until(PATIENCE, "the server to die", async || {
        anyhow::ensure!(!is_alive(pid) && !folder.exists(), "process {pid} or {} is left", folder.display());
        Ok(())
    });
    gone.await.unwrap();
}

#[tokio::test]
async fn servers_can_be_started_from_any_task() {
    fn is_send<T: Send>(_: &T) {}
    is_send(&MySql::start(Flavor::MySql));
    is_send(&Kafka::start());
    is_send(&RabbitMq::start());
    is_send(&create_topic("", "", 1));
}

/// The names of the alerts in this state, each with its outbox.
async fn notified(alertmanager: &Alertmanager, state: &str) -> Vec<(String, String)> {
    let text = |alert: &serde_json::Value, path: &str| {
        alert.pointer(path).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
    };
    let alerts = alertmanager.alerts().await.unwrap();
    let mut names: Vec<_> = alerts.iter().filter(|alert| text(alert, "/status/state") == state).collect();
    names.sort_by_key(|alert| text(alert, "/labels/alertname"));
    names.into_iter().map(|alert| (text(alert, "/labels/alertname"), text(alert, "/labels/job"))).collect()
}

#[tokio::test]
async fn alertmanager_gets_alerts_and_leaves_out_what_follows_from_another_one() {
    let alertmanager = Alertmanager::start().await.unwrap();
    let alert = |name: &str, job: &str| serde_json::json!({ "labels": { "alertname": name, "job": job } });
    let database = "OutboxDatabaseUnreachable";
    let sink = "OutboxSinkDisconnected";
    let stuck = "OutboxLoopStuck";
    let stalled = "OutboxStalled";
    let dead = "OutboxDeadMessages";
    let shop = [database, stuck, stalled, dead].map(|name| alert(name, "shop"));
    let mail = [sink, stuck, stalled, dead].map(|name| alert(name, "mail"));
    let alerts = [&shop[..], &mail, &[alert(stuck, "bank")]].concat();
    alertmanager.tell(&serde_json::json!(alerts)).await.unwrap();
    until(PATIENCE, "the inhibition", || async {
        let suppressed = notified(&alertmanager, "suppressed").await;
        anyhow::ensure!(suppressed.len() == 2, "{suppressed:?} are left out");
        Ok(())
    })
    .await
    .unwrap();
    let follow = [(stuck, "shop"), (stalled, "mail")].map(|(name, job)| (name.to_owned(), job.to_owned()));
    assert_eq!(notified(&alertmanager, "suppressed").await, follow);

    let prometheus = Prometheus::faster(&[("outbox", &[free_port().unwrap()])], 10).await.unwrap();
    prometheus.alert_to(&alertmanager).unwrap();
    until(PATIENCE, "an alert of Prometheus", || async {
        let active = notified(&alertmanager, "active").await;
        anyhow::ensure!(active.iter().any(|(name, _)| name == "OutboxRelayAbsent"), "{active:?}");
        Ok(())
    })
    .await
    .unwrap();
}
