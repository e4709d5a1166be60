//! Debian's Chromium, which tests drive through its chromedriver.

use anyhow::Result;
use tokio::net::TcpStream;

use super::call::Call;
use super::host::{Host, blocking, folder};
use super::{ports, system::ensure_program};

/// A running chromedriver. Drop kills it with its browsers and removes their profiles.
#[derive(Debug)]
pub struct ChromeDriver {
    host: Host,
    port: u16,
}

impl ChromeDriver {
    /// Starts one.
    ///
    /// # Errors
    /// When it is not installed and cannot be, or does not answer; then with the end of its log.
    pub async fn start() -> Result<Self> {
        let mut server = blocking(launch).await?;
        let port = server.port;
        // It listens once it takes requests, and leaves a connection open whatever its client wants.
        server.host.ready(|| async move { Ok(TcpStream::connect(("127.0.0.1", port)).await.map(drop)?) }).await?;
        Ok(server)
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Installs Chromium and chromedriver if they are missing. Blocking.
///
/// # Errors
/// When they are missing and cannot be installed.
pub fn chromium() -> Result<()> {
    ensure_program("chromium", "chromium")?;
    ensure_program("chromedriver", "chromium-driver")
}

fn launch() -> Result<ChromeDriver> {
    chromium()?;
    let folder = folder("chromedriver")?;
    let port = ports::free_port()?;
    // The profile of a browser that is killed stays behind.
    let call = Call::new("chromedriver").option("port", port.to_string()).env("TMPDIR", folder.path());
    Ok(ChromeDriver { host: Host::start(call, folder)?, port })
}
