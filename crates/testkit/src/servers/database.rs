//! A database of its own for every test.

use anyhow::Result;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};
use uuid::Uuid;

/// Creates an empty database with a unique name on the server at `url` and returns the address with that name.
///
/// # Errors
/// When the server cannot be reached or refuses.
pub async fn fresh_database(url: &str) -> Result<String> {
    let name = format!("test_{}", Uuid::now_v7().simple());
    let mut connection = MySqlConnection::connect(url).await?;
    connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name} CHARACTER SET utf8mb4"))).await?;
    connection.close().await?;
    Ok(with_database(url, &name))
}

/// `url` with another database and the same parameters.
fn with_database(url: &str, name: &str) -> String {
    let (address, parameters) =
        url.split_once('?').map_or((url, None), |(address, parameters)| (address, Some(parameters)));
    let host = address.find("://").map_or(0, |scheme| scheme + 3);
    let end = address.get(host..).and_then(|rest| rest.find('/')).map_or(address.len(), |slash| host + slash);
    let parameters = parameters.map(|parameters| format!("?{parameters}")).unwrap_or_default();
    format!("{}/{name}{parameters}", address.get(..end).unwrap_or(address))
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn the_database_is_added_or_replaced() {
        assert_eq!(with_database("mysql://root@127.0.0.1:1/", "a"), "mysql://root@127.0.0.1:1/a");
        assert_eq!(with_database("mysql://root@127.0.0.1:1", "a"), "mysql://root@127.0.0.1:1/a");
        assert_eq!(with_database("mysql://u:p@h:1/old", "a"), "mysql://u:p@h:1/a");
    }

    #[test]
    fn parameters_stay() {
        assert_eq!(with_database("mysql://h/old?ssl-mode=DISABLED", "a"), "mysql://h/a?ssl-mode=DISABLED");
    }
}
