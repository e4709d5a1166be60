//! Secrets: from the configuration itself or from a file, in types that do not print.

use std::{
    borrow::Cow,
    fmt, fs,
    path::{Path, PathBuf},
};

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

    /// Reads a secret from a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is empty. The error says what to change, as text behind "the file … ".
    pub fn of_file(file: PathBuf) -> Result<Self, String> {
        Ok(Self { text: read(&file)?, file: Some(file) })
    }

    /// Whether the text can change: it comes from a file.
    #[cfg(feature = "rabbitmq")]
    pub(crate) fn is_of_file(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the file's current text; `None` without a file, and while the file cannot be read.
    #[cfg(feature = "rabbitmq")]
    pub(crate) fn in_file(&self) -> Option<String> {
        read(self.file.as_deref()?).ok()
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
    #[doc(hidden)]
    #[must_use]
    pub fn for_url(&self) -> String {
        self.current().replace('%', "%25")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
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
