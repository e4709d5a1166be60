//! Certificates of authorities: a file without one is found here, and not as a server whose authority nobody knows.

use std::{fs, path::Path};

use outbox_core::sqlx::mysql::MySqlSslMode;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use url::Url;

use super::{Kafka, reader::Reader, value::quote};

impl Reader {
    /// Looks into the file that a URL of the database names, where the driver would: only to verify. What looks like PEM is no path.
    pub(super) fn check_database_authority(&mut self, path: &str, url: &str, mode: MySqlSslMode) {
        let Ok(url) = Url::parse(url) else { return };
        if !matches!(mode, MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity) {
            return;
        }
        let is_pem = |text: &str| text.trim().starts_with("-----BEGIN") && text.trim().ends_with("-----");
        let named = url.query_pairs().filter(|(name, _)| matches!(&**name, "ssl-ca" | "sslca")).last();
        if let Some((_, file)) = named.filter(|(_, value)| !is_pem(value)) {
            self.check_authority(path, &format!("ssl-ca of `{path}`"), &file);
        }
    }

    /// The same for Kafka. `probe` stands for the system's, and a directory has them under names of OpenSSL's own.
    pub(super) fn check_kafka_authority(&mut self, section: &str, kafka: &Kafka) {
        let Some(file) = kafka.properties.get("ssl.ca.location").map(|file| file.0.as_str()) else { return };
        if file != "probe" && !Path::new(file).is_dir() {
            let path = format!("{section}.properties.ssl.ca.location");
            self.check_authority(&path, &format!("`{path}`"), file);
        }
    }

    fn check_authority(&mut self, path: &str, name: &str, file: &str) {
        if let Some(problem) = problem(Path::new(file)) {
            let at = self.at(path);
            self.settings.problem(at, format!("{name}: the file {} {problem}", quote(file)));
        }
    }
}

/// Why a file shows no certificate; none: it does.
fn problem(file: &Path) -> Option<String> {
    let pem = match fs::read(file) {
        Ok(pem) => pem,
        Err(error) => return Some(format!("cannot be read ({error}): correct the path or its permissions")),
    };
    match CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => None,
        Ok(_) => {
            Some("holds no certificate: it must have one at least, as PEM (-----BEGIN CERTIFICATE-----)".to_owned())
        }
        Err(_damaged) => Some("is damaged or cut off: write it again, as PEM".to_owned()),
    }
}
