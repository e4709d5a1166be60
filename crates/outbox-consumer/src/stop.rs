/// Ends with SIGTERM or Ctrl-C: the stop signal that most services give to `run`.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(error) => {
            tracing::error!(%error, "cannot listen to signals: the process ends only when it is killed");
            std::future::pending::<()>().await;
        }
    }
}
