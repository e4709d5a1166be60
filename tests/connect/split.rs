//! A proxy that sends reads to a replica, as `ProxySQL` may.

#![expect(clippy::indexing_slicing, reason = "a packet that is too short fails the test")]

use anyhow::{Context as _, Result, ensure};
use testkit::{
    database::Database,
    servers::{Flavor, MySqlOptions},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
};

use crate::check;

/// Capabilities of the client that the replica's login leaves out: `CONNECT_ATTRS`.
const ATTRIBUTES: u8 = 1 << 4;
/// The command that carries a text.
const QUERY: u8 = 3;

/// One packet of MySQL's protocol, with its header.
async fn packet(from: &mut (impl AsyncReadExt + Unpin)) -> Result<Vec<u8>> {
    let mut packet = vec![0; 4];
    from.read_exact(&mut packet).await?;
    let [a, b, c, _] = packet.as_slice() else { unreachable!("four bytes") };
    let length = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
    packet.resize(4 + length, 0);
    from.read_exact(&mut packet[4..]).await?;
    Ok(packet)
}

/// Logs in as root, which has no password, with the client's other properties.
async fn log_in(replica: &mut TcpStream, client: &[u8], database: &str) -> Result<()> {
    packet(replica).await?;
    let mut login = client[4..36].to_vec();
    login[2] &= !ATTRIBUTES;
    login.extend([b"root\0\0", database.as_bytes(), b"\0mysql_native_password\0"].concat());
    replica.write_all(&[&[u8::try_from(login.len())?, 0, 0, 1], login.as_slice()].concat()).await?;
    let answer = packet(replica).await?;
    if answer[4] == 0xfe {
        replica.write_all(&[0, 0, 0, answer[3] + 1]).await?;
        ensure!(packet(replica).await?[4] == 0, "the replica refuses");
    }
    Ok(())
}

/// Sends reads without locks to the replica, and all else to the primary. Only one of them answers at a time.
async fn split(client: TcpStream, primary: u16, replica: u16, database: &str) -> Result<()> {
    let mut primary = TcpStream::connect(("127.0.0.1", primary)).await?;
    let mut replica = TcpStream::connect(("127.0.0.1", replica)).await?;
    let (mut from_client, mut to_client) = client.into_split();
    to_client.write_all(&packet(&mut primary).await?).await?;
    let login = packet(&mut from_client).await?;
    log_in(&mut replica, &login, database).await?;
    primary.write_all(&login).await?;
    let (mut from_primary, mut to_primary) = primary.into_split();
    let (mut from_replica, mut to_replica) = replica.into_split();
    let requests = async {
        loop {
            let request = packet(&mut from_client).await?;
            let text = String::from_utf8_lossy(&request[5..]).into_owned();
            let read = request[4] == QUERY && text.starts_with("SELECT") && !text.contains("FOR UPDATE");
            let to: &mut OwnedWriteHalf = if read { &mut to_replica } else { &mut to_primary };
            to.write_all(&request).await?;
        }
    };
    let answers = async {
        let mut one = vec![0; 1 << 16];
        let mut other = vec![0; 1 << 16];
        loop {
            let answer = tokio::select! {
                length = from_primary.read(&mut one) => &one[..length?],
                length = from_replica.read(&mut other) => &other[..length?],
            };
            ensure!(!answer.is_empty(), "a server has closed its connection");
            to_client.write_all(answer).await?;
        }
    };
    tokio::select! { ended = requests => ended, ended = answers => ended }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_splits_reads_and_writes_is_found() -> Result<()> {
    let options = MySqlOptions::new(Flavor::MariaDb).buffer_pool_mib(64);
    let (primary, replica) = tokio::try_join!(options.clone().start(), options.arg("--server-id=2").start())?;
    let database = Database::create_on(&primary.url()).await?;
    let name = database.url().rsplit_once('/').and_then(|(_, rest)| rest.split('?').next()).context("no name")?;
    let copy = Database::create_on(&replica.url()).await?;
    let name = name.to_owned();
    let own = copy.url().rsplit_once('/').and_then(|(_, rest)| rest.split('?').next()).context("no name")?.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("mysql://root@{}/{name}?ssl-mode=disabled", listener.local_addr()?);
    let through_proxy = url.clone();
    let primary_port = primary.port();
    let replica_port = replica.port();
    let proxy = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let own = own.clone();
            tokio::spawn(async move { split(client, primary_port, replica_port, &own).await });
        }
    });
    let found = tokio::task::spawn_blocking(move || check::database(&url)).await??;
    let mut findings = tokio::task::spawn_blocking(move || check::doctor(&through_proxy)).await??;
    proxy.abort();
    // The account of the test has every privilege.
    let others = check::doctor(database.url())?;
    findings.retain(|finding| !others.contains(finding));
    ensure!(findings == ["two_servers"], "{findings:?} beside {others:?}");
    ensure!(!found.ok && found.detail.contains("one server answers reads"), "{}", found.detail);
    let found = check::database(database.url())?;
    ensure!(found.ok, "{}", found.detail);
    Ok(())
}
