//! Secrets: from the configuration itself or from a file, in types that do not print.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use url::Url;

use super::{reader::Reader, value::quote};

impl Reader {
    /// A secret, given as `path` or in the file that `path_file` names.
    pub(super) fn secret(&mut self, path: &str) -> Option<String> {
        let path_file = format!("{path}_file");
        let here = self.text(path).map(str::to_owned);
        let Some(file) = self.text(&path_file).map(str::to_owned) else { return here };
        if here.is_some() {
            let at = format!("{} and {}", self.at(path), self.at(&path_file));
            self.settings.problem(at, format!("both `{path}` and `{path_file}` are given: remove one of the two"));
            return here;
        }
        match read(Path::new(&file)) {
            Ok(secret) => Some(secret),
            Err(problem) => {
                let at = self.at(&path_file);
                self.settings.problem(at, format!("`{path_file}`: the file {} {problem}", quote(&file)));
                None
            }
        }
    }

    /// The URL of a section, and the password that is given apart.
    pub(super) fn url(&mut self, section: &str, schemes: &[&str]) -> (Option<Url>, Option<String>) {
        let path = format!("{section}.url");
        let text = self.secret(&path);
        let password = self.secret(&format!("{section}.password"));
        let Some(text) = text else { return (None, password) };
        match parse(&text, schemes, password.is_some()) {
            Ok(url) => (Some(url), password),
            Err(problem) => {
                let given = if self.text(&path).is_some() { path } else { format!("{path}_file") };
                let at = self.at(&given);
                self.settings.problem(at, format!("`{given}` {problem}"));
                (None, password)
            }
        }
    }
}

/// Reads a secret; the error says what to change.
fn read(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot be read ({error}): correct the path or its permissions");
    let mode = fs::metadata(path).map_err(cannot)?.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(format!(
            "is open to every user of this machine (mode {mode:04o}): chmod 600, or 640 with a group of its own"
        ));
    }
    let text = fs::read_to_string(path).map_err(cannot)?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err("is empty: write the secret into it".to_owned()),
        secret => Ok(secret.to_owned()),
    }
}

/// Reads a URL; the error does not repeat it.
fn parse(text: &str, schemes: &[&str], password_apart: bool) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| schemes.contains(&url.scheme()));
    let url = url.filter(|url| url.host_str().is_some_and(|host| !host.is_empty()));
    let url =
        url.ok_or_else(|| format!("does not read as {}://user:password@host:port/name", schemes.join(":// or ")))?;
    if password_apart && url.password().is_some() {
        return Err("holds a password, and one is given apart: remove one of the two".to_owned());
    }
    Ok(url)
}
