//! A command of an operator as a request: its words are the path, its flags and arguments are parameters.

use clap::{ArgAction, ArgMatches, CommandFactory as _, Parser, parser::ValueSource};

use crate::cli::operate::Operate;

/// Flags of the terminal, and the name of the operator, which the API takes from the token.
const LOCAL: [&str; 3] = ["format", "watch", "actor"];

/// The commands that can be requests.
#[derive(Debug, Parser)]
#[command(name = "relay", no_binary_name = true, disable_help_subcommand = true)]
struct Commands {
    #[command(subcommand)]
    command: Operate,
}

/// A path such as `dead/retry`, and parameters such as `reason` and `too_large`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(in crate::cli) path: String,
    pub(in crate::cli) parameters: Vec<(String, String)>,
}

impl Request {
    /// Returns the command that was given, as a request.
    pub(crate) fn of(root: &clap::Command, matches: &ArgMatches) -> Self {
        let mut request = Self::default();
        let mut command = root;
        let mut matches = matches;
        while let Some((name, inner)) = matches.subcommand() {
            let Some(found) = command.find_subcommand(name) else { break };
            (command, matches) = (found, inner);
            if !request.path.is_empty() {
                request.path.push('/');
            }
            request.path.push_str(name);
            for argument in arguments(command) {
                let id = argument.get_id().as_str();
                if matches.value_source(id) != Some(ValueSource::CommandLine) {
                    continue;
                }
                let values =
                    matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
                request.parameters.extend(values.map(|value| (parameter(argument), value)));
            }
        }
        request
    }

    /// Reads it as a command. `actor` is the operator in the audit.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong.
    pub(super) fn command(&self, actor: &str) -> Result<Operate, String> {
        let root = Commands::command();
        let mut command = &root;
        let mut words = Vec::new();
        for word in self.path.split('/') {
            command = command.find_subcommand(word).ok_or_else(|| format!("there is no `{word}` in /{}", self.path))?;
            words.push(word.to_owned());
        }
        if command.is_subcommand_required_set() {
            let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
            return Err(format!("/{} is not all of the path: go on with {}", self.path, names.join(", ")));
        }
        let mut places = Vec::new();
        for (name, value) in &self.parameters {
            let Some(argument) = arguments(command).find(|argument| parameter(argument) == *name) else {
                let known: Vec<_> = arguments(command).map(parameter).collect();
                return Err(format!("there is no parameter `{name}`: there is {}", known.join(", ")));
            };
            match (argument.get_long(), argument.get_action()) {
                (None, _) => places.push(value.clone()),
                (Some(long), ArgAction::SetTrue) => match value.as_str() {
                    "true" => words.push(format!("--{long}")),
                    "false" => {}
                    _ => return Err(format!("`{name}` must be true or false")),
                },
                (Some(long), _) => words.push(format!("--{long}={value}")),
            }
        }
        if command.get_arguments().any(|argument| argument.get_id() == "actor") {
            words.push(format!("--actor={actor}"));
        }
        words.push("--".to_owned());
        words.extend(places);
        let parsed = Commands::try_parse_from(words).map_err(|error| sentence(&error))?;
        match parsed.command.operation().problem() {
            Some(problem) => Err(problem.to_string()),
            None => Ok(parsed.command),
        }
    }
}

/// The problem alone: no usage of a command line, and parameters by their names.
fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    text.split_whitespace().map(|word| word.replace("--", "")).collect::<Vec<_>>().join(" ")
}

/// Returns the flags and arguments that a request may have.
fn arguments(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    let is_local = |argument: &clap::Arg| LOCAL.iter().any(|local| argument.get_id() == *local);
    let is_of_all = |argument: &clap::Arg| {
        argument.is_global_set()
            || matches!(argument.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong)
    };
    command.get_arguments().filter(move |argument| !is_local(argument) && !is_of_all(argument))
}

fn parameter(argument: &clap::Arg) -> String {
    argument.get_long().unwrap_or(argument.get_id().as_str()).replace('-', "_")
}

/// Returns the paths, with their parameters, for the documentation.
pub(crate) fn paths() -> Vec<(String, Vec<String>)> {
    let mut paths = Vec::new();
    list(&Commands::command(), "", &mut paths);
    paths
}

fn list(command: &clap::Command, path: &str, paths: &mut Vec<(String, Vec<String>)>) {
    for inner in command.get_subcommands() {
        let path = format!("{path}/{}", inner.get_name());
        if !inner.is_subcommand_required_set() {
            paths.push((path.clone(), arguments(inner).map(parameter).collect()));
        }
        list(inner, &path, paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &[&str]) -> Request {
        let words = words.iter().copied().filter(|word| *word != "relay");
        let command = Commands::command();
        let matches = command.clone().try_get_matches_from(words).unwrap();
        Request::of(&command, &matches)
    }

    fn parameters(request: &Request) -> Vec<(&str, &str)> {
        request.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    #[test]
    fn a_command_is_the_same_one_after_its_way_as_a_request() {
        for (words, path, expected) in [
            (&["why", "123", "--format", "json"][..], "why", &[("message", "123")][..]),
            (&["status", "--watch"], "status", &[]),
            (
                &["dead", "retry", "--reason", "too_large", "--yes", "--because", "it=--fits", "--actor", "x"],
                "dead/retry",
                &[("reason", "too_large"), ("yes", "true"), ("because", "it=--fits")],
            ),
            (
                &["pause", "--lane", "3", "--for", "30m", "--because", "x"],
                "pause",
                &[("lane", "3"), ("for", "30m"), ("because", "x")],
            ),
            (&["jobs", "stop", "7", "--because", "x"], "jobs/stop", &[("job", "7"), ("because", "x")]),
            (&["jobs", "--limit", "7"], "jobs", &[("limit", "7")]),
            (&["dead", "list", "--group-by", "error"], "dead/list", &[("group_by", "error")]),
        ] {
            let request = request(words);
            let mut found = parameters(&request);
            found.sort_unstable();
            let mut expected = expected.to_vec();
            expected.sort_unstable();
            assert_eq!((request.path.as_str(), found), (path, expected));
            let command = request.command("alice").unwrap();
            let given = Commands::try_parse_from(words).unwrap().command;
            // Apart from what is local.
            let plain = |command: &Operate| {
                let text = format!("{command:?}")
                    .replace("format: Json", "format: Table")
                    .replace("watch: true", "watch: false");
                text.split("actor: ").next().map(str::to_owned)
            };
            assert_eq!(plain(&command), plain(&given));
            assert!(
                !format!("{command:?}").contains("actor") || format!("{command:?}").contains("actor: \"alice\""),
                "{command:?}"
            );
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_what_there_is() {
        let refused = |path: &str, parameters: &[(&str, &str)]| {
            let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Request { path: path.to_owned(), parameters }.command("alice").unwrap_err()
        };
        assert_eq!(refused("run", &[]), "there is no `run` in /run");
        assert_eq!(refused("dead/bury", &[]), "there is no `bury` in /dead/bury");
        assert_eq!(refused("", &[]), "there is no `` in /");
        assert_eq!(refused("dead", &[]), "/dead is not all of the path: go on with list, retry, release, discard");
        for local in LOCAL.into_iter().chain(["config", "set", "help"]) {
            assert!(
                refused("status", &[(local, "x")]).starts_with(&format!("there is no parameter `{local}`")),
                "{local}"
            );
        }
        assert!(refused("dead/retry", &[("reasn", "x"), ("topic", "a")]).contains("reason, topic"));
        assert_eq!(refused("dead/retry", &[("all", "yes")]), "`all` must be true or false");
        assert!(refused("dead/retry", &[("yes", "true"), ("all", "true")]).contains("because"));
        let problem = refused("dead/retry", &[]);
        assert!(problem.contains("required") && !problem.contains("--"), "{problem}");
        assert!(refused("why", &[("message", "--format=json")]).contains("give a UUID"));
        assert!(refused("why", &[("message", "1"), ("message", "2")]).contains("unexpected"));
    }
}
