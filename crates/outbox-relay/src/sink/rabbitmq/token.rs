//! A password that expires: a token of OAuth 2, in a file that is written again before that.

use std::{sync::Arc, time::Duration};

use lapin::Connection;
use tokio::{task::spawn_blocking, time::sleep};

use crate::settings::Secret;

/// How often the file is read. Issuers give tokens for minutes at least.
const LOOK: Duration = Duration::from_secs(5);

/// Gives the broker the password again when its file has changed, until the connection ends. Without that the broker
/// refuses everything on a connection whose token has expired.
pub(super) fn renew(connection: &Arc<Connection>, password: Secret, mut known: String) {
    let connection = Arc::downgrade(connection);
    tokio::spawn(async move {
        loop {
            sleep(LOOK).await;
            let Some(connection) = connection.upgrade().filter(|it| it.status().connected()) else { return };
            let file = password.clone();
            // The next connect complains of a file that cannot be read. It may be a file that is just being replaced.
            let Ok(text) = spawn_blocking(move || file.in_file()).await else { return };
            let Some(current) = text.filter(|text| *text != known) else { continue };
            let updated = connection.update_secret(current.as_str().into(), "the file has changed".into()).await;
            match updated {
                Ok(()) => tracing::info!("RabbitMQ has the changed password of this connection"),
                Err(error) => tracing::warn!(%error, "RabbitMQ refuses the changed password of this connection"),
            }
            known = current;
        }
    });
}
