//! The package mirror of this machine, read from its own apt configuration. This project contains no address.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// One archive: its address, its contents, and the key it is signed with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Source {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: Option<String>,
}

/// The archive of this machine's own release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mirror {
    uri: String,
    signed_by: Option<String>,
    pub(super) suite: String,
    pub(super) debian: bool,
}

impl Mirror {
    /// A deb822 source for `suite` on this mirror.
    pub(super) fn with_suite(&self, suite: &str) -> String {
        let components = if self.debian { "main" } else { "main universe" };
        let key = self.signed_by.as_ref().map(|key| format!("Signed-By: {key}\n")).unwrap_or_default();
        format!("Types: deb\nURIs: {}\nSuites: {suite}\nComponents: {components}\n{key}", self.uri)
    }
}

/// The mirror from which this machine installs its own packages.
pub(super) fn mirror() -> Result<Mirror> {
    let os = fs::read_to_string("/etc/os-release").context("not a Debian or Ubuntu machine")?;
    choose(&configured(), &os).context("apt has no archive of this machine's own release")
}

fn choose(sources: &[Source], os_release: &str) -> Option<Mirror> {
    let field = |name: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"'))
    };
    let codename = field("VERSION_CODENAME").unwrap_or("sid");
    let known = [codename, "stable", "testing", "unstable", "sid"];
    let (suite, source) =
        known.iter().find_map(|suite| Some((*suite, sources.iter().find(|source| source.offers(suite))?)))?;
    Some(Mirror {
        uri: source.uri.clone(),
        signed_by: source.signed_by.clone(),
        suite: suite.to_owned(),
        debian: field("ID") == Some("debian"),
    })
}

impl Source {
    fn offers(&self, suite: &str) -> bool {
        self.suites.iter().any(|offered| offered == suite)
            && self.components.iter().any(|component| component == "main")
    }
}

fn configured() -> Vec<Source> {
    let mut files: Vec<PathBuf> = vec!["/etc/apt/sources.list".into()];
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten();
    files.extend(parts.filter_map(|part| Some(part.ok()?.path())));
    files.sort();
    files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap_or_default();
            if file.extension().is_some_and(|end| end == "sources") { deb822(&text) } else { one_line(&text) }
        })
        .collect()
}

/// `deb [options] uri suite component…`, one archive a line.
fn one_line(text: &str) -> Vec<Source> {
    text.lines()
        .filter_map(|line| {
            let rest = line.split('#').next()?.trim().strip_prefix("deb")?;
            let rest = rest.starts_with(char::is_whitespace).then(|| rest.trim_start())?;
            let (options, rest) = match rest.strip_prefix('[') {
                Some(rest) => rest.split_once(']')?,
                None => ("", rest),
            };
            let mut words = rest.split_whitespace().map(str::to_owned);
            Some(Source {
                uri: words.next()?,
                suites: vec![words.next()?],
                components: words.collect(),
                signed_by: options
                    .split_whitespace()
                    .find_map(|option| option.strip_prefix("signed-by="))
                    .map(str::to_owned),
            })
        })
        .collect()
}

/// Stanzas of `Field: value`, separated by empty lines. A line that starts with a blank continues the field before it.
fn deb822(text: &str) -> Vec<Source> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split("\n\n").filter_map(stanza).collect()
}

fn stanza(text: &str) -> Option<Source> {
    let mut fields: HashMap<String, String> = HashMap::new();
    let mut current = String::new();
    for line in text.lines() {
        match line.split_once(':').filter(|_| !line.starts_with([' ', '\t'])) {
            Some((name, value)) => {
                current = name.to_ascii_lowercase();
                fields.insert(current.clone(), value.trim().to_owned());
            }
            None => fields.entry(current.clone()).or_default().extend(["\n", line]),
        }
    }
    let words =
        |name: &str| fields.get(name).map(|value| value.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let enabled = fields.get("enabled").is_none_or(|value| value != "no");
    let binary = words("types").is_some_and(|types| types.iter().any(|kind| kind == "deb"));
    (enabled && binary).then_some(())?;
    Some(Source {
        uri: words("uris")?.into_iter().next()?,
        suites: words("suites")?,
        components: words("components").unwrap_or_default(),
        signed_by: fields.get("signed-by").cloned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKWORM: &str = "ID=debian\nVERSION_CODENAME=bookworm\n";

    #[test]
    fn a_deb822_file_gives_the_mirror_and_its_key() {
        let text = "Types: deb\n# a comment\nURIs: http://mirror.example/main\nSuites: bookworm bookworm-updates\n\
                    Components: main\nSigned-By: /usr/share/keyrings/archive.gpg\n\nTypes: deb\n\
                    URIs: http://mirror.example/security\n\
                    Suites: bookworm-security\nComponents: main\n";
        let mirror = choose(&deb822(text), BOOKWORM).unwrap();
        assert_eq!(mirror.uri, "http://mirror.example/main");
        assert_eq!(mirror.signed_by.as_deref(), Some("/usr/share/keyrings/archive.gpg"));
        assert!(mirror.with_suite("sid").contains("Suites: sid\nComponents: main\nSigned-By: /usr/share"));
    }

    #[test]
    fn a_one_line_file_gives_the_mirror_and_its_key() {
        let text = "# deb http://old.example bookworm main\ndeb-src http://src.example bookworm main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/main bookworm main contrib # why\n";
        let mirror = choose(&one_line(text), BOOKWORM).unwrap();
        assert_eq!((mirror.uri.as_str(), mirror.signed_by.as_deref()), ("http://mirror.example/main", Some("/k.gpg")));
    }

    #[test]
    fn an_inline_key_keeps_its_lines() {
        let text =
            "Types: deb\nURIs: http://m\nSuites: noble\nComponents: main universe\nSigned-By:\n -----BEGIN\n .\n mQ=\n";
        let mirror = choose(&deb822(text), "ID=ubuntu\nVERSION_CODENAME=noble").unwrap();
        assert!(!mirror.debian);
        assert!(
            mirror.with_suite("noble").ends_with("Components: main universe\nSigned-By: \n -----BEGIN\n .\n mQ=\n")
        );
    }

    #[test]
    fn archives_of_others_are_not_the_mirror() {
        let text =
            "deb https://tools.example/apt nodistro main\ndeb http://mirror.example/main bookworm-updates main\n";
        assert_eq!(choose(&one_line(text), BOOKWORM), None);
    }

    #[test]
    fn a_disabled_archive_is_not_the_mirror() {
        let text = "Enabled: no\nTypes: deb\nURIs: http://m\nSuites: bookworm\nComponents: main\n";
        assert_eq!(choose(&deb822(text), BOOKWORM), None);
    }
}
