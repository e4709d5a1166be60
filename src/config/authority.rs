//! Checks certificates of authorities: a file without one is reported here, and not as a server with an unknown
//! authority.

use std::{fs, path::Path};

use outbox_core::sqlx::mysql::MySqlSslMode;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use url::Url;

use super::{reader::SettingsReader, value::quote};

impl SettingsReader {
    /// Checks the file that a URL of the database names, if the driver reads it: only to verify. Text that looks like
    /// PEM is no path.
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

    /// Notes a file without a private key.
    pub(super) fn check_key(&mut self, path: &str, file: &Path) {
        let problem = match fs::read(file) {
            Ok(pem) if PrivateKeyDer::from_pem_slice(&pem).is_ok() => return self.warn_of_readers(path, file),
            Ok(_) => "holds no key: it must have one, as PEM (-----BEGIN PRIVATE KEY-----)".to_owned(),
            Err(error) => format!("cannot be read ({error}): correct the path or its permissions"),
        };
        let file = quote(&file.display().to_string());
        self.settings.problem(self.at(path), format!("`{path}`: the file {file} {problem}"));
    }

    /// Notes a file without a certificate, under this name.
    pub(super) fn check_authority(&mut self, path: &str, name: &str, file: &str) {
        if let Some(problem) = problem(Path::new(file)) {
            let at = self.at(path);
            self.settings.problem(at, format!("{name}: the file {} {problem}", quote(file)));
        }
    }
}

/// The reason why a file shows no certificate; `None` if it shows one.
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
