//! A Galera cluster of MariaDB: three nodes, each of which takes writes.
//!
//! All nodes start with the data of the first one, so that they transfer no data when they join. Galera hands over
//! later writes, and its script for the rest only reports that there is nothing to transfer.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::{Context as _, Result, ensure};
use sqlx::{Connection as _, MySqlConnection};
use tempfile::TempDir;

use super::{Flavor, MySql, MySqlOptions, PATIENCE, cache, free_port, host::blocking, packages, until};

const NODES: usize = 3;

/// Galera's state transfer between nodes with the same data: the donor sends the position to the joiner.
const TRANSFER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in
        --role) role=$2; shift ;;
        --address) address=$2; shift ;;
        --datadir) data=$2; shift ;;
        --gtid) gtid=$2; shift ;;
    esac
    shift
done
if [ "$role" = donor ]; then
    told=/${address#*/}
    echo "$gtid" > "$told.new" && mv "$told.new" "$told"
    echo "done $gtid"
else
    told=${data%/}/told
    rm -f "$told"
    echo "ready 127.0.0.1:1$told"
    while [ ! -f "$told" ]; do sleep 0.05; done
    cat "$told"
fi
"#;

/// A running cluster. Drop kills it.
#[derive(Debug)]
pub struct Galera {
    /// The running nodes.
    pub nodes: Vec<MySql>,
    _folder: TempDir,
}

impl Galera {
    /// Starts a cluster, and waits until all nodes are in it.
    ///
    /// # Errors
    /// When there is no MariaDB or no Galera to start, or a node does not join.
    pub async fn start() -> Result<Self> {
        let folder = super::host::folder("galera")?;
        let data = folder.path().join("data");
        let library = blocking(packages::galera).await?;
        let script = folder.path().join("wsrep_sst_told");
        fs::write(&script, TRANSFER)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
        let ports: Vec<[u16; 2]> =
            (0..NODES).map(|_| Ok([free_port()?, free_port()?])).collect::<Result<_>>().context("no free ports")?;
        let options = |number: usize, ports: &[[u16; 2]]| node(number, ports, &library, folder.path());
        let mut first = options(0, &ports)?.arg("--wsrep-new-cluster").start().await?;
        first.stop().await?;
        let from = first.folder().context("the node has no folder")?.join("data");
        blocking({
            let to = data.clone();
            move || cache::copy(&from, &to)
        })
        .await?;
        first.restart().await?;
        let mut nodes = vec![first];
        for number in 1..NODES {
            nodes.push(options(number, &ports)?.data(&data).start().await?);
            for node in &nodes {
                until(PATIENCE, "a node to be in the cluster", || joined(node, nodes.len())).await?;
            }
        }
        Ok(Self { nodes, _folder: folder })
    }
}

fn node(number: usize, ports: &[[u16; 2]], library: &Path, folder: &Path) -> Result<MySqlOptions> {
    let [group, increments] = ports.get(number).context("no such node")?;
    let all: Vec<String> = ports.iter().map(|[port, _]| format!("127.0.0.1:{port}")).collect();
    let path = std::env::var("PATH").unwrap_or_default();
    let options = MySqlOptions::new(Flavor::MariaDb).buffer_pool_mib(128);
    Ok([
        "--wsrep-on=ON".to_owned(),
        format!("--wsrep-provider={}", library.display()),
        format!("--wsrep-cluster-address=gcomm://{}", all.join(",")),
        "--wsrep-node-address=127.0.0.1".to_owned(),
        format!("--wsrep-node-name=node{number}"),
        "--wsrep-sst-method=told".to_owned(),
        format!(
            "--wsrep-provider-options=base_port={group};gmcast.listen_addr=tcp://127.0.0.1:{group};\
             ist.recv_addr=127.0.0.1:{increments}"
        ),
        "--innodb-autoinc-lock-mode=2".to_owned(),
        format!("--server-id={}", number + 1),
    ]
    .iter()
    .fold(options, |options, argument| options.arg(argument))
    .env("PATH", &format!("{}:{path}", folder.display())))
}

async fn joined(node: &MySql, nodes: usize) -> Result<()> {
    let mut connection = MySqlConnection::connect(&node.url()).await?;
    for (name, expected) in [("cluster_size", nodes.to_string()), ("local_state_comment", "Synced".to_owned())] {
        let sql = format!("SHOW GLOBAL STATUS LIKE 'wsrep_{name}'");
        let (_, found): (String, String) = sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_one(&mut connection).await?;
        ensure!(found == expected, "wsrep_{name} is {found}");
    }
    Ok(connection.close().await?)
}
