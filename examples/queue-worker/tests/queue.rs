//! The program, killed at each point where a crash could lose or repeat an effect.

use anyhow::{Context as _, Result, ensure};
use outbox_core::sqlx::{self, Connection as _};
use testkit::{
    accounts::Account,
    database::Database,
    on_both_databases,
    program::{self, Program},
    relay::Metrics,
    servers::{Flavor, PATIENCE, free_port, until},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

on_both_databases!(
    transfers_are_booked_once_by_two_processes,
    a_process_that_is_killed_in_mid_work_is_taken_over_and_each_transfer_is_booked_once,
    a_process_that_is_frozen_in_mid_work_keeps_no_lock_for_longer_than_its_lease,
    a_crash_after_the_claim_leaves_one_booking_each,
    a_crash_after_the_work_leaves_one_booking_each,
    a_crash_in_the_commit_leaves_one_booking_each,
    a_crash_after_the_commit_leaves_one_booking_each,
);

struct Stage {
    database: Database,
}

impl Stage {
    async fn new(flavor: Flavor) -> Result<Self> {
        Ok(Self { database: Database::create(flavor).await? })
    }

    fn worker(&self, crash_point: &str) -> Result<Program> {
        self.worker_with("RELAY_CRASH_POINT", crash_point)
    }

    /// With this variable in its environment.
    fn worker_with(&self, variable: &str, value: &str) -> Result<Program> {
        let database = self.database.url_as(Account::Owner)?;
        let environment = [("DATABASE_URL", database.as_str()), (variable, value)];
        Program::start(env!("CARGO_BIN_EXE_queue-worker"), &environment)
    }

    /// Returns the output of `relay status`.
    async fn status(&self) -> Result<String> {
        let mut command = tokio::process::Command::new(program::relay()?);
        let output =
            command.arg("status").env("RELAY__DATABASE__URL", self.database.url_as(Account::Relay)?).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Lets the program enqueue transfers, numbered from 1.
    async fn enqueue(&self, transfers: u64) -> Result<()> {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_queue-worker"));
        let status = command
            .arg(transfers.to_string())
            .env("DATABASE_URL", self.database.url_as(Account::Owner)?)
            .status()
            .await?;
        ensure!(status.success(), "enqueueing ended with {status}");
        Ok(())
    }

    /// Waits until the transfers 1 to `transfers` are booked, each once and in the order of its account.
    async fn wait_until_booked(&self, transfers: i64) -> Result<()> {
        self.database.wait_until_drained(PATIENCE).await?;
        let count = async |what: &str| self.database.number(&format!("SELECT COUNT({what}) FROM bookings")).await;
        let different = count("DISTINCT number").await?;
        let all = count("*").await?;
        ensure!(different == transfers && all == transfers, "{transfers} transfers: {different}, booked {all} times");
        let cents = self.database.number("SELECT CAST(SUM(cents) AS SIGNED) FROM accounts").await?;
        ensure!(cents == 50 * transfers * (transfers + 1), "{cents} cents");
        let out_of_order = "SELECT COUNT(*) FROM bookings a JOIN bookings b \
                            ON a.account = b.account AND a.id < b.id AND a.number > b.number";
        ensure!(self.database.number(out_of_order).await? == 0, "bookings of an account are out of order");
        let receipts = "SELECT COUNT(*) FROM outbox_sent_messages WHERE receipt = 'worker'";
        ensure!(self.database.number(receipts).await? == transfers, "a transfer has no receipt, or two");
        Ok(())
    }
}

/// Sends a request to a worker. An answer other than 200 is an error.
async fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    Ok(answer)
}

async fn transfers_are_booked_once_by_two_processes(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    stage.enqueue(200).await?;
    let addresses = [free_port()?, free_port()?].map(|port| format!("127.0.0.1:{port}"));
    let [first, second] = &addresses;
    let mut workers = [stage.worker_with("LISTEN", first)?, stage.worker_with("LISTEN", second)?];
    stage.wait_until_booked(200).await?;
    until(PATIENCE, "two workers that are ready and have counted all", || async {
        let mut published: f64 = 0.0;
        for address in &addresses {
            get(address, "/readyz").await?;
            let metrics = Metrics::parse(&get(address, "/metrics").await?);
            published += metrics.sum_where("outbox_relay_published_messages_total", r#"sink="worker""#);
        }
        ensure!((published - 200.0).abs() < 0.1, "{published} messages");
        Ok(())
    })
    .await?;
    let status = stage.status().await?;
    ensure!(status.lines().any(|line| line.split_whitespace().eq(["pending", "0"])), "{status}");
    for worker in &mut workers {
        worker.stop(PATIENCE).await?;
    }
    Ok(())
}

/// Returns the owner of the claim on an account's transfers. The owner's name has the process id.
async fn who_works_on<'a>(stage: &Stage, account: u64, workers: &'a [Program]) -> Result<&'a Program> {
    for worker in workers {
        let sql = format!(
            "SELECT COUNT(*) FROM outbox_claimed_messages JOIN outbox_messages USING (id) \
             WHERE message_key = '{account}' AND owner LIKE '%-{}/%'",
            worker.pid()
        );
        if stage.database.number(&sql).await? > 0 {
            return Ok(worker);
        }
    }
    anyhow::bail!("nobody works on the account {account}")
}

async fn a_process_that_is_killed_in_mid_work_is_taken_over_and_each_transfer_is_booked_once(
    flavor: Flavor,
) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    stage.enqueue(70).await?;
    // Work on this account stops in the middle: it waits for the lock of the account's row.
    stage.database.execute("INSERT INTO accounts (id, cents) VALUES (3, 0)").await?;
    let mut connection = stage.database.connect().await?;
    let mut lock = connection.begin().await?;
    sqlx::query("SELECT cents FROM accounts WHERE id = 3 FOR UPDATE").execute(&mut *lock).await?;
    let workers = [stage.worker("")?, stage.worker("")?];
    stage.database.wait_for_lock_waits(flavor, 1).await?;
    // A wait may just have timed out; then it begins again.
    let victim = until(PATIENCE, "a victim", || who_works_on(&stage, 3, &workers)).await?;
    victim.kill()?;
    let claimed = format!("SELECT COUNT(*) FROM outbox_claims WHERE owner LIKE '%-{}/%'", victim.pid());
    ensure!(stage.database.number(&claimed).await? > 0, "it was killed without a claim");
    lock.rollback().await?;
    stage.wait_until_booked(70).await?;
    let survivor = workers.iter().find(|worker| worker.pid() != victim.pid()).context("no survivor")?;
    ensure!(survivor.log()?.contains("took over a claim"), "nothing was taken over\n{}", survivor.log()?);
    Ok(())
}

async fn a_process_that_is_frozen_in_mid_work_keeps_no_lock_for_longer_than_its_lease(flavor: Flavor) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    stage.enqueue(40).await?;
    // Work stops after it has locked the account's row: nothing can be inserted behind the last booking.
    let mut connection = stage.database.connect().await?;
    let mut lock = connection.begin().await?;
    sqlx::query("SELECT id FROM bookings FOR UPDATE").execute(&mut *lock).await?;
    let mut frozen = stage.worker("")?;
    stage.database.wait_for(PATIENCE, "SELECT COUNT(*) FROM outbox_claims").await?;
    stage.database.wait_for_lock_waits(flavor, 1).await?;
    frozen.pause()?;
    lock.rollback().await?;
    let mut second = stage.worker("")?;
    stage.wait_until_booked(40).await?;
    frozen.resume()?;
    frozen.stop(PATIENCE).await?;
    second.stop(PATIENCE).await?;
    stage.wait_until_booked(40).await
}

async fn dies_at(point: &str, flavor: Flavor, booked: std::ops::Range<i64>) -> Result<()> {
    let stage = Stage::new(flavor).await?;
    stage.enqueue(40).await?;
    let mut victim = stage.worker(point)?;
    let status = victim.wait_for_end(PATIENCE).await?;
    ensure!(!status.success(), "it was to die at {point}\n{}", victim.log()?);
    let found = stage.database.number("SELECT COUNT(*) FROM bookings").await?;
    ensure!(booked.contains(&found), "{found} bookings after the crash at {point}");
    let mut next = stage.worker("")?;
    stage.wait_until_booked(40).await?;
    next.stop(PATIENCE).await
}

async fn a_crash_after_the_claim_leaves_one_booking_each(flavor: Flavor) -> Result<()> {
    dies_at("after_claim", flavor, 0..1).await
}

async fn a_crash_after_the_work_leaves_one_booking_each(flavor: Flavor) -> Result<()> {
    dies_at("after_work", flavor, 0..1).await
}

/// The server may or may not execute the commit that the dead process has sent.
async fn a_crash_in_the_commit_leaves_one_booking_each(flavor: Flavor) -> Result<()> {
    dies_at("mid_commit", flavor, 0..41).await
}

async fn a_crash_after_the_commit_leaves_one_booking_each(flavor: Flavor) -> Result<()> {
    dies_at("after_commit", flavor, 1..41).await
}
