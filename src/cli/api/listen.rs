//! The listener of `relay api`: an address, or a unix socket.

use std::{
    fmt, fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use axum::{Router, response::Response};
use hyper::{Request, body::Incoming, service::Service as _};
use hyper_util::service::TowerToHyperService;
use outbox_relay::observe::http::{self, Respond};
use tokio::net::{TcpListener, UnixListener};

use super::problem;

/// The owner and the group may ask.
const MODE: u32 = 0o660;

#[derive(Clone)]
struct ApiRoutes(Router);

impl Respond for ApiRoutes {
    type Body = axum::body::Body;

    async fn answer(&self, request: Request<Incoming>) -> Response {
        let Ok(answer) = TowerToHyperService::new(self.0.clone()).call(request).await;
        answer
    }
}

pub(super) enum Listening {
    Address(TcpListener),
    Socket(UnixListener, PathBuf),
}

impl Listening {
    /// Opens the address, or else the socket.
    pub(super) async fn open(address: Option<SocketAddr>, socket: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(address) = address {
            return Ok(Self::Address(http::bind_as(address, "api.listen").await?));
        }
        let path = socket.ok_or_else(|| problem("api.listen", "it is off: give an address, or `api.socket`"))?;
        let listener = bind(path).with_context(|| {
            format!("cannot listen on {}: change `api.socket`, or stop what listens there", path.display())
        })?;
        Ok(Self::Socket(listener, path.to_owned()))
    }

    /// Answers until `stop` is done, see [`http::serve_with`].
    pub(super) async fn serve(self, router: Router, time: Duration, stop: impl Future<Output = ()>) {
        match self {
            Self::Address(listener) => http::serve_with(listener, ApiRoutes(router), time, stop).await,
            Self::Socket(listener, path) => {
                http::serve_with(listener, ApiRoutes(router), time, stop).await;
                fs::remove_file(path).ok();
            }
        }
    }
}

impl fmt::Display for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "{address}"),
                Err(error) => write!(f, "{error}"),
            },
            Self::Socket(_, path) => write!(f, "{}", path.display()),
        }
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    // A process that was killed has left its socket.
    let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_for_the_group_and_replaces_only_what_nobody_listens_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let first = Listening::open(None, Some(&path)).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let error = Listening::open(None, Some(&path)).await.err().unwrap();
        assert!(error.to_string().ends_with("api.sock: change `api.socket`, or stop what listens there"), "{error}");
        drop(first);
        let second = Listening::open(None, Some(&path)).await.unwrap();
        second.serve(Router::new(), Duration::MAX, std::future::ready(())).await;
        assert!(!path.exists());
        // A file that is no socket stays.
        fs::write(&path, "text").unwrap();
        assert!(Listening::open(None, Some(&path)).await.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }

    #[tokio::test]
    async fn it_may_be_off() {
        let error = Listening::open(None, None).await.err().unwrap();
        assert!(error.to_string().contains("give an address, or `api.socket`"), "{error}");
    }
}
