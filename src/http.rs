//! The listener for `/metrics`, `/livez` and `/readyz`.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use tokio::net::TcpListener;

use crate::{health::Health, metrics::Metrics};

#[derive(Clone)]
struct Shared {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

/// Takes the address, so that a port in use is found before anything else starts.
pub async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let taken = TcpListener::bind(address).await;
    taken.with_context(|| format!("cannot listen on {address} (http.listen): choose another address, or `off`"))
}

/// Serves until it is dropped.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, health: Arc<Health>) -> std::io::Result<()> {
    let app = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(Shared { metrics, health });
    axum::serve(listener, app).await
}

async fn show_metrics(State(shared): State<Shared>) -> impl IntoResponse {
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], shared.metrics.render())
}

/// Its own loops only: a database that is down is no reason to restart the relay.
async fn livez(State(shared): State<Shared>) -> impl IntoResponse {
    answer(&shared.health.stuck())
}

async fn readyz(State(shared): State<Shared>) -> impl IntoResponse {
    answer(&shared.health.reasons())
}

fn answer(problems: &[String]) -> (StatusCode, String) {
    if problems.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n")
}
