//! Secrets: from the configuration itself or from a file, in types that do not print.

use std::{
    borrow::Cow,
    fmt, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use url::Url;

use super::{path::KeyPath, reader::SettingsReader, source::Problem, value::quote};

/// A text that is never printed, and the file that it was read from, if any.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
    file: Option<PathBuf>,
}

impl Secret {
    /// Creates a secret without a file.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), file: None }
    }

    /// Returns the text as it was when the configuration was read.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the current text: a file is read again. If that fails, uses the text from the start, and logs it.
    #[must_use]
    pub fn current(&self) -> Cow<'_, str> {
        let Some(file) = &self.file else { return Cow::Borrowed(&self.text) };
        match read(file) {
            Ok(text) => Cow::Owned(text),
            Err(problem) => {
                tracing::warn!(file = %file.display(), problem, "a secret is used as it was at the start");
                Cow::Borrowed(&self.text)
            }
        }
    }

    /// Returns the current text for a setter of `Url`, which encodes everything but `%`.
    pub(crate) fn for_url(&self) -> String {
        self.current().replace('%', "%25")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

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
        match read(&file) {
            Ok(text) => {
                self.warn_of_readers(&path_file, &file);
                Some(Secret { text, file: Some(file) })
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

/// Reads a secret; the error says what to change.
fn read(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot be read ({error}): correct the path or its permissions");
    let text = fs::read_to_string(path).map_err(cannot)?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err("is empty: write the secret into it".to_owned()),
        secret => Ok(secret.to_owned()),
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
