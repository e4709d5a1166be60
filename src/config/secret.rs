//! Secrets: from the configuration itself or from a file.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use outbox_relay::settings::Secret;
use url::Url;

use super::{path::KeyPath, reader::SettingsReader, source::Problem, value::quote};

impl SettingsReader {
    /// Returns a secret that is given as `path`, or in the file that `path_file` names.
    pub(super) fn secret(&mut self, path: &KeyPath) -> Option<Secret> {
        let path_file = path.file();
        let here = self.text(path).map(Secret::new);
        let Some(file) = self.text(&path_file).map(PathBuf::from) else { return here };
        if here.is_some() {
            let at = format!("{} and {}", self.at(path), self.at(&path_file));
            self.settings.problem(at, format!("both `{path}` and `{path_file}` are given: remove one of the two"));
            return here;
        }
        match Secret::of_file(file.clone()) {
            Ok(secret) => {
                self.warn_of_readers(&path_file, &file);
                Some(secret)
            }
            Err(problem) => {
                let at = self.at(&path_file);
                let file = quote(&file.display().to_string());
                self.settings.problem(at, format!("`{path_file}`: the file {file} {problem}"));
                None
            }
        }
    }

    /// Warns if others than the owner can read a file with a secret. It is no error, because Kubernetes mounts secrets
    /// so.
    pub(super) fn warn_of_readers(&mut self, path: &str, file: &Path) {
        let Ok(metadata) = fs::metadata(file) else { return };
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o044 != 0 {
            let who = if mode & 0o004 != 0 { "every user of this machine" } else { "its group" };
            let file = quote(&file.display().to_string());
            let text =
                format!("`{path}`: the file {file} can be read by {who} (mode {mode:04o}): chmod 600, if it can be");
            self.settings.warnings.push(Problem { at: self.at(path), text });
        }
    }

    /// Returns the URL of a section, and the password that is given apart.
    pub(super) fn url(
        &mut self,
        path: &KeyPath,
        password: &KeyPath,
        schemes: &[&str],
    ) -> (Option<Secret>, Option<Secret>) {
        let text = self.secret(path);
        let password = self.secret(password);
        let Some(text) = text else { return (None, password) };
        match parse(text.text(), schemes, password.is_some()) {
            Ok(()) => (Some(text), password),
            Err(problem) => {
                let given = if self.text(path).is_some() { path.to_string() } else { format!("{path}_file") };
                let at = self.at(&given);
                self.settings.problem(at, format!("`{given}` {problem}"));
                (None, password)
            }
        }
    }
}

/// Checks a URL; the error does not repeat it.
fn parse(text: &str, schemes: &[&str], password_apart: bool) -> Result<(), String> {
    let url = Url::parse(text).ok().filter(|url| schemes.contains(&url.scheme()));
    let url = url.filter(|url| url.host_str().is_some_and(|host| !host.is_empty()));
    let url =
        url.ok_or_else(|| format!("does not read as {}://user:password@host:port/name", schemes.join(":// or ")))?;
    if password_apart && url.password().is_some() {
        return Err("holds a password, and one is given apart: remove one of the two".to_owned());
    }
    Ok(())
}
