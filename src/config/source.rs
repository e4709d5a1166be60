//! Gathers settings from the file, the environment and flags into one flat map, in which the later source wins.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use outbox_relay::settings::value::ValueKind;

use super::{
    file,
    keys::ConfigKey,
    lookup,
    value::{Shape, WrittenValue},
};

/// The sources of a configuration.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Inputs {
    /// The TOML file, if there is one.
    pub file: Option<PathBuf>,
    /// The environment; only names beginning with `RELAY__` matter.
    pub variables: Vec<(String, String)>,
    /// Flags: the name of the flag, the key, and the value.
    pub flags: Vec<(String, String, String)>,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueOrigin {
    /// It was not given.
    Default,
    /// A place in the file.
    File {
        /// The file.
        file: Arc<str>,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A necessary change of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The place: `file:line:column`, a variable or a flag.
    pub at: String,
    /// The problem, and the change that cures it.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.text)
    }
}

/// A value and its origin.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) written: WrittenValue,
    pub(super) origin: ValueOrigin,
}

/// All given values by path, and the problems so far.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) values: BTreeMap<String, Setting>,
    pub(super) sinks: BTreeMap<String, ValueOrigin>,
    pub(super) routes: BTreeMap<usize, ValueOrigin>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
    /// The place to add missing keys.
    pub(super) home: String,
}

impl Settings {
    /// Reads all sources.
    pub(super) fn gather(inputs: &Inputs) -> Self {
        let home = "configuration (there is no relay.toml here, and neither --config nor RELAY_CONFIG names a file)";
        let mut settings = Self { home: home.to_owned(), ..Self::default() };
        if let Some(path) = &inputs.file {
            settings.home = path.display().to_string();
            file::read(path, &mut settings);
        }
        for (name, value) in &inputs.variables {
            settings.variable(name, value);
        }
        for (flag, path, value) in &inputs.flags {
            settings.flag(flag, path, value);
        }
        settings
    }

    /// Notes a problem.
    pub(super) fn problem(&mut self, at: impl fmt::Display, text: impl Into<String>) {
        self.problems.push(Problem { at: at.to_string(), text: text.into() });
    }

    /// Takes a value, in place of an earlier one.
    pub(super) fn insert(&mut self, path: String, written: WrittenValue, origin: ValueOrigin) {
        self.note(&path, &origin);
        self.values.insert(path, Setting { written, origin });
    }

    /// Notes that a sink or a route exists.
    pub(super) fn note(&mut self, path: &str, origin: &ValueOrigin) {
        let mut parts = path.split('.');
        match (parts.next(), parts.next()) {
            (Some("sinks"), Some(name)) => {
                self.sinks.entry(name.to_owned()).or_insert_with(|| origin.clone());
            }
            (Some("routes"), Some(number)) => {
                let number = number.parse().unwrap_or(usize::MAX);
                self.routes.entry(number).or_insert_with(|| origin.clone());
            }
            _ => {}
        }
    }

    fn variable(&mut self, name: &str, value: &str) {
        let Some(rest) = name.strip_prefix("RELAY__") else { return };
        let path = property_dots(&rest.to_lowercase().replace("__", "."));
        let origin = ValueOrigin::Variable(name.to_owned());
        if lookup::find(&path).is_none() {
            let near = lookup::nearest(&path).map(|near| variable_name(&near));
            return self.unknown("variable", name, near, &origin);
        }
        self.insert(path, WrittenValue { text: value.to_owned(), shape: Shape::Word }, origin);
    }

    fn flag(&mut self, flag: &str, path: &str, value: &str) {
        let origin = ValueOrigin::Flag(if flag == "--set" { format!("--set {path}") } else { flag.to_owned() });
        let Some(key) = lookup::find(path) else {
            return self.unknown("key", path, lookup::nearest(path), &origin);
        };
        if is_secret(key, path) {
            let instead = variable_name(path);
            return self.problem(
                origin,
                format!("arguments can be read by every user of this machine: set {instead} or {instead}_FILE instead"),
            );
        }
        self.insert(path.to_owned(), WrittenValue { text: value.to_owned(), shape: Shape::Word }, origin);
    }

    /// Notes an unknown key.
    pub(super) fn unknown(&mut self, what: &str, name: &str, near: Option<String>, origin: &ValueOrigin) {
        let advice = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => "remove it, or see `relay config example`".to_owned(),
        };
        self.problem(origin, format!("unknown {what} `{name}`: {advice}"));
    }
}

/// Returns the variable of a key.
pub(super) fn variable_name(path: &str) -> String {
    let (head, property) = path.split_once(".properties.").unwrap_or((path, ""));
    let head = head.replace('.', "__");
    let name = if property.is_empty() { head } else { format!("{head}__properties__{}", property.replace('.', "_")) };
    format!("RELAY__{}", name.to_uppercase())
}

/// Restores the dots in a property's name, which variables cannot have.
fn property_dots(path: &str) -> String {
    let Some((head, property)) = path.split_once(".properties.") else { return path.to_owned() };
    let (name, file) = property.strip_suffix("_file").map_or((property, ""), |name| (name, "_file"));
    format!("{head}.properties.{}{file}", name.replace('_', "."))
}

/// Whether the value of a key must not be shown.
pub(super) fn is_secret(key: &ConfigKey, path: &str) -> bool {
    const MARKS: [&str; 6] = ["password", "secret", "pem", "oauthbearer", "jaas", "token"];
    key.kind == ValueKind::Secret
        || key.is_map() && !path.ends_with("_file") && MARKS.iter().any(|mark| path.contains(mark))
}

/// Returns the file to read: the named one, or `relay.toml` here if it exists.
#[must_use]
pub fn default_file(named: Option<&Path>) -> Option<PathBuf> {
    let here = Path::new("relay.toml");
    named.map(Path::to_owned).or_else(|| here.exists().then(|| here.to_owned()))
}
