/// Ends with Ctrl-C, and on Unix with SIGTERM: the stop signal that most services give to `run`.
pub async fn stop_signal() {
    let told = tokio::select! {
        told = terminated() => told,
        told = tokio::signal::ctrl_c() => told,
    };
    if let Err(error) = told {
        tracing::error!(%error, "cannot listen to signals: the process ends only when it is killed");
        std::future::pending::<()>().await;
    }
}

#[cfg(unix)]
async fn terminated() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    signal(SignalKind::terminate())?.recv().await;
    Ok(())
}

#[cfg(not(unix))]
async fn terminated() -> std::io::Result<()> {
    std::future::pending().await
}
