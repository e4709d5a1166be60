//! Reads and checks a configuration in all steps, and reports all problems at once.

use std::{fmt, net::SocketAddr};

use super::{
    Config,
    reader::SettingsReader,
    show::Effective,
    source::{Inputs, Problem, Settings},
};

/// A configuration that was read, with the origin of each value.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Every effective value; secrets as `***`.
    pub values: Vec<Effective>,
    /// Usable settings that deserve a second look.
    pub warnings: Vec<Problem>,
}

/// The problems of an unusable configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError(pub Vec<Problem>);

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// Reads and checks a configuration. Opens only the file, and the files of secrets and of authorities' certificates
/// that it names.
pub fn load(inputs: &Inputs) -> Result<Loaded, ConfigError> {
    loaded(inputs, true)
}

/// Does the same for commands that need only the database: sinks and routes may be missing.
pub fn load_for_database(inputs: &Inputs) -> Result<Loaded, ConfigError> {
    loaded(inputs, false)
}

/// Returns the address to listen on, whatever else is wrong; `None` if `off`.
#[must_use]
pub fn listen_address(inputs: &Inputs) -> Option<SocketAddr> {
    SettingsReader::new(Settings::gather(inputs)).http().listen
}

fn loaded(inputs: &Inputs, publishes: bool) -> Result<Loaded, ConfigError> {
    let mut reader = SettingsReader::new(Settings::gather(inputs));
    let config = reader.config();
    reader.check(&config);
    if publishes {
        reader.check_complete(&config);
    }
    let values = reader.effective();
    let Settings { problems, warnings, .. } = reader.settings;
    if problems.is_empty() { Ok(Loaded { config, values, warnings }) } else { Err(ConfigError(problems)) }
}
