//! Servers that show certificates of the tests' own authority: a valid one is accepted, every other is refused.

use std::{fs, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result, ensure};
use outbox_core::sqlx::{self, Connection as _, MySqlConnection};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;
use testkit::{
    accounts::Account,
    consume::Broker,
    database::Database,
    relay::{Relay, Settings},
    servers::{Flavor, Kafka, MySqlOptions, PATIENCE, until},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};

use crate::check::{self, Finding};

/// The certificate that a server shows.
#[derive(Debug, Clone, Copy)]
enum Shown {
    Valid,
    Expired,
    OfAnotherHost,
    OfAnotherAuthority,
}

impl Shown {
    const ALL: [Self; 4] = [Self::Valid, Self::Expired, Self::OfAnotherHost, Self::OfAnotherAuthority];
}

/// Two authorities, one of them trusted, and the certificate that a server shows now.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Result<Self> {
        let certificates = Self(tempfile::tempdir()?);
        certificates.show(Shown::Valid)?;
        Ok(certificates)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the certificate of the trusted authority, and a server's with its key and its authority.
    fn show(&self, shown: Shown) -> Result<()> {
        let trusted = authority("trusted")?;
        let stranger = authority("stranger")?;
        let host = if matches!(shown, Shown::OfAnotherHost) { "elsewhere.example" } else { "127.0.0.1" };
        let mut params = CertificateParams::new([host.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, host);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(if matches!(shown, Shown::Expired) { 2021 } else { 2060 }, 1, 1);
        let key = KeyPair::generate()?;
        let (issuer, signer) = if matches!(shown, Shown::OfAnotherAuthority) { &stranger } else { &trusted };
        fs::write(self.path("issuer.pem"), issuer)?;
        fs::write(self.path("server.pem"), params.signed_by(&key, signer)?.pem())?;
        fs::write(self.path("key.pem"), key.serialize_pem())?;
        let own = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "relay");
        fs::write(self.path("client.pem"), params.signed_by(&own, &trusted.1)?.pem())?;
        fs::write(self.path("client.key"), own.serialize_pem())?;
        Ok(fs::write(self.path("ca.pem"), &trusted.0)?)
    }

    /// Does the same for a server that admits only clients with a certificate of the trusted authority.
    fn demanding_acceptor(&self) -> Result<TlsAcceptor> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.pem"))?)?;
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
        let chain = CertificateDer::pem_file_iter(self.path("server.pem"))?.collect::<Result<Vec<_>, _>>()?;
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.with_client_cert_verifier(clients);
        let key = PrivateKeyDer::from_pem_file(self.path("key.pem"))?;
        Ok(TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key)?)))
    }

    /// Returns the acceptor of a server in this process.
    fn acceptor(&self) -> Result<TlsAcceptor> {
        let chain = CertificateDer::pem_file_iter(self.path("server.pem"))?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(self.path("key.pem"))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config =
            config.with_safe_default_protocol_versions()?.with_no_client_auth().with_single_cert(chain, key)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Creates an authority: its certificate, and its signer.
fn authority(name: &str) -> Result<(String, Issuer<'static, KeyPair>)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    Ok((certificate, Issuer::new(params, key)))
}

/// Takes TLS at a port, with the certificate of that moment, and passes it on in plain text, as a load balancer does.
/// It ends with the test.
async fn terminate(shown: watch::Receiver<TlsAcceptor>, port: u16, server: String) -> Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = shown.borrow().clone();
            let server = server.clone();
            tokio::spawn(async move {
                let mut client = acceptor.accept(client).await?;
                copy_bidirectional(&mut client, &mut TcpStream::connect(server).await?).await
            });
        }
    });
    Ok(address)
}

/// Checks that a valid certificate is accepted, and that the text names the fault of any other.
fn judge(shown: Shown, found: &Finding, texts: [&str; 3]) -> Result<()> {
    let [expired, of_another_host, of_another_authority] = texts;
    let expected = match shown {
        Shown::Valid => {
            ensure!(found.ok, "{}", found.detail);
            return Ok(());
        }
        Shown::Expired => expired,
        Shown::OfAnotherHost => of_another_host,
        Shown::OfAnotherAuthority => of_another_authority,
    };
    ensure!(!found.ok && found.detail.contains(expected), "{shown:?}: {}", found.detail);
    Ok(())
}

const RUSTLS: [&str; 3] = ["certificate expired", "not valid for name", "UnknownIssuer"];

async fn the_database_shows_its_certificate(flavor: Flavor) -> Result<()> {
    let certificates = Certificates::new()?;
    let option = |name: &str, file: &str| format!("--{name}={}", certificates.path(file).display());
    let options = MySqlOptions::new(flavor).arg(&option("ssl-cert", "server.pem"));
    let server = options.arg(&option("ssl-key", "key.pem")).arg(&option("ssl-ca", "issuer.pem")).start().await?;
    let mut admin = MySqlConnection::connect(&server.url()).await?;
    sqlx::raw_sql("CREATE DATABASE shop").execute(&mut admin).await?;
    outbox_core::migrate(&mut MySqlConnection::connect(&format!("{}shop", server.url())).await?).await?;
    let url =
        |mode: &str| format!("{}shop?ssl-mode={mode}&ssl-ca={}", server.url(), certificates.path("ca.pem").display());
    let reload = if flavor == Flavor::MySql { "ALTER INSTANCE RELOAD TLS" } else { "FLUSH SSL" };
    for shown in Shown::ALL {
        if matches!((flavor, shown), (Flavor::MySql, Shown::Expired)) {
            // MySQL does not load an expired certificate.
            continue;
        }
        certificates.show(shown)?;
        sqlx::raw_sql(reload).execute(&mut admin).await?;
        judge(shown, &check::database(&url("verify_identity"))?, RUSTLS)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_shows_its_certificate() -> Result<()> {
    the_database_shows_its_certificate(Flavor::MySql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_shows_its_certificate() -> Result<()> {
    the_database_shows_its_certificate(Flavor::MariaDb).await
}

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_shows_its_certificate() -> Result<()> {
    let amqp = Broker::RabbitMq.address().await?;
    let authority = amqp.split('@').nth(1).and_then(|rest| rest.split('/').next()).context("no address")?;
    let certificates = Certificates::new()?;
    let (show, shows) = watch::channel(certificates.acceptor()?);
    let address = terminate(shows, 0, authority.to_owned()).await?;
    let url = format!("amqps://guest:guest@{address}/%2f");
    for shown in Shown::ALL {
        certificates.show(shown)?;
        show.send(certificates.acceptor()?)?;
        judge(shown, &check::rabbitmq(&url, Some(&certificates.path("ca.pem")))?, RUSTLS)?;
    }
    fs::write(certificates.path("ca.pem"), "no certificate")?;
    let unknown = check::rabbitmq(&url, Some(&certificates.path("ca.pem")))?;
    let expected = "unavailable: no authority is known: set `ca_file` of the sink, install the system's certificates, \
                    or name a file with some in SSL_CERT_FILE (IO error: Could not load any valid native certificates)";
    assert_eq!(unknown.detail, expected);
    Ok(())
}

/// Only the authority in the sink's own file counts, and the sink shows its certificate on demand.
#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_is_reached_with_an_authority_and_a_certificate_of_our_own() -> Result<()> {
    let amqp = Broker::RabbitMq.address().await?;
    let authority = amqp.split('@').nth(1).and_then(|rest| rest.split('/').next()).context("no address")?;
    let certificates = Certificates::new()?;
    let (show, shows) = watch::channel(certificates.acceptor()?);
    let address = terminate(shows, 0, authority.to_owned()).await?;
    let file = |key: &str, name: &str| format!("{key} = \"{}\"\n", certificates.path(name).display());
    let url = format!("amqps://guest:guest@{address}/%2f");
    let trusting = file("ca_file", "ca.pem");
    let showing = trusting.clone() + &file("certificate_file", "client.pem") + &file("key_file", "client.key");
    for shown in Shown::ALL {
        certificates.show(shown)?;
        show.send(certificates.acceptor()?)?;
        judge(shown, &check::rabbitmq_with(&url, &trusting)?, RUSTLS)?;
    }
    certificates.show(Shown::Valid)?;
    show.send(certificates.demanding_acceptor()?)?;
    let refused = check::rabbitmq_with(&url, &trusting)?;
    ensure!(!refused.ok && refused.detail.contains("set `certificate_file` and `key_file`"), "{}", refused.detail);
    judge(Shown::Valid, &check::rabbitmq_with(&url, &showing)?, RUSTLS)
}

/// A server that refuses each login, behind TLS: one that answers was reached.
#[tokio::test(flavor = "multi_thread")]
async fn the_management_api_is_reached_with_the_authority_of_its_sink() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?.to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(1..) = client.read(&mut [0; 4096]).await else { continue };
            client.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").await.ok();
        }
    });
    let amqp = Broker::RabbitMq.address().await?;
    let certificates = Certificates::new()?;
    let (show, shows) = watch::channel(certificates.acceptor()?);
    let address = terminate(shows, 0, server).await?;
    let authority = certificates.path("ca.pem");
    let keys = format!("management_url = \"https://{address}\"\nca_file = \"{}\"\n", authority.display());
    for shown in Shown::ALL {
        certificates.show(shown)?;
        show.send(certificates.acceptor()?)?;
        let found = Finding { ok: matches!(shown, Shown::Valid), detail: check::unchecked(&amqp, &keys)? };
        ensure!(found.detail.contains("refuses the user guest (401)") == found.ok, "{}", found.detail);
        judge(shown, &found, RUSTLS)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_of_requests_shows_its_certificate() -> Result<()> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let certificates = Certificates::new()?;
    let (show, shows) = watch::channel(certificates.acceptor()?);
    let address = terminate(shows, 0, server.local_addr()?.to_string()).await?;
    for shown in Shown::ALL {
        certificates.show(shown)?;
        show.send(certificates.acceptor()?)?;
        judge(shown, &check::http(&format!("https://{address}"), &certificates.path("ca.pem"))?, RUSTLS)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_before_the_api_shows_its_certificate() -> Result<()> {
    let database = Database::create(Flavor::MySql).await?;
    let settings = Settings::new(&database.url_as(Account::Operator)?);
    let api = Relay::start_api(env!("CARGO_BIN_EXE_relay"), &settings)?;
    until(PATIENCE, "the API", async || api.get("/livez").await).await?;
    let certificates = Certificates::new()?;
    let (show, shows) = watch::channel(certificates.acceptor()?);
    let address = terminate(shows, 0, format!("127.0.0.1:{}", api.port())).await?;
    for shown in Shown::ALL {
        certificates.show(shown)?;
        show.send(certificates.acceptor()?)?;
        judge(shown, &check::via(&format!("https://{address}"), &certificates.path("ca.pem"))?, RUSTLS)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_shows_its_certificate() -> Result<()> {
    let server = Kafka::start().await?;
    let ports = server.ports()?;
    let certificates = Certificates::new()?;
    let (show, shows) = watch::channel(certificates.acceptor()?);
    let address = terminate(shows, ports.advertised, format!("127.0.0.1:{}", ports.listener)).await?;
    let authority = certificates.path("ca.pem");
    let properties = format!("\"security.protocol\" = \"ssl\", \"ssl.ca.location\" = \"{}\"", authority.display());
    for shown in Shown::ALL {
        certificates.show(shown)?;
        show.send(certificates.acceptor()?)?;
        judge(shown, &check::kafka(&address, &properties)?, ["certificate verify failed"; 3])?;
    }
    Ok(())
}
