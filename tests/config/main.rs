//! An unusable configuration is refused with all its problems at once, each with its place and the necessary change.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod routes;
mod secrets;

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use mysql_outbox::config::{
    Config, Inputs, KafkaConfig, Loaded, example, listen_address, load, load_for_database, schema,
};
use outbox_relay::sink::stdout::OwnOutput;
use tempfile::TempDir;

/// A configuration that is enough for a relay.
const GOOD: &str = r#"
[database]
url = "mysql://relay@localhost:3306/shop"
[sinks.main]
type = "stdout"
[[routes]]
topics = "*"
sink = "main"
"#;

const KAFKA: &str = "[sinks.k]\ntype = \"kafka\"\nbrokers = \"localhost:9092\"\n";
const RABBIT: &str = "[sinks.r]\ntype = \"rabbitmq\"\n";
const HTTP: &str = "[sinks.h]\ntype = \"http\"\n";

/// A directory with files, and the inputs made from them.
struct Case {
    dir: TempDir,
    inputs: Inputs,
}

impl Case {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("relay.toml");
        fs::write(&file, text).unwrap();
        let mut inputs = Inputs::default();
        inputs.file = Some(file);
        Self { dir, inputs }
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.inputs.variables.push((name.into(), value.into()));
        self
    }

    fn set(mut self, key: &str, value: &str) -> Self {
        self.inputs.flags.push(("--set".into(), key.into(), value.into()));
        self
    }

    fn secret(&self, text: &str, mode: u32) -> PathBuf {
        let path = self.dir.path().join("secret");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn load(&self) -> Loaded {
        load(&self.inputs).unwrap()
    }

    /// Returns the problems, with `DIR/` instead of the directory.
    fn problems(&self) -> Vec<String> {
        let error = load(&self.inputs).unwrap_err().to_string();
        error.replace(&format!("{}/", self.dir.path().display()), "DIR/").lines().map(str::to_owned).collect()
    }
}

/// Returns the problems of a good configuration followed by these lines.
fn problems_with(lines: &str) -> Vec<String> {
    Case::new(&format!("{GOOD}{lines}")).problems()
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let Config { relay, retry, retention, http, sinks, .. } = Case::new(GOOD).load().config;
    assert_eq!(relay.lease, Duration::from_secs(30));
    assert_eq!((relay.claim_messages, relay.claim_bytes), (3000, 4 << 20));
    assert_eq!((relay.in_flight_messages, relay.in_flight_bytes), (12_000, 32 << 20));
    assert_eq!(relay.poll_interval, Duration::from_millis(100));
    assert_eq!((retry.base, retry.max, retry.max_attempts), (Duration::from_secs(1), Duration::from_secs(300), 20));
    assert_eq!(retention.dead, Duration::from_secs(30 * 86_400));
    assert_eq!(http.listen, Some(([127, 0, 0, 1], 9464).into()));
    assert!(sinks["main"].of::<OwnOutput>().is_some());
    assert!(relay.owner.ends_with(&format!("-{}", std::process::id())));
}

#[test]
fn the_later_source_wins_and_show_says_which_it_was() {
    let case = Case::new(&format!("{GOOD}[relay]\nlease = \"31s\"\nreaders = 3\nsettlers = 3\n"))
        .variable("RELAY__RELAY__READERS", "4")
        .variable("RELAY__RELAY__SETTLERS", "4")
        .variable("RELAY_CONFIG", "elsewhere")
        .variable("PATH", "/bin")
        .set("relay.settlers", "5");
    let loaded = case.load();
    let relay = &loaded.config.relay;
    assert_eq!((relay.lease.as_secs(), relay.readers, relay.settlers), (31, 4, 5));
    let origin = |key: &str| loaded.values.iter().find(|value| value.key == key).unwrap().origin.to_string();
    assert_eq!(origin("relay.safety"), "default");
    assert!(origin("relay.lease").ends_with("relay.toml:10:1"), "{}", origin("relay.lease"));
    assert_eq!(origin("relay.readers"), "variable RELAY__RELAY__READERS");
    assert_eq!(origin("relay.settlers"), "flag --set relay.settlers");
}

#[test]
fn show_lists_every_section_that_the_schema_knows() {
    let known = schema();
    let known: BTreeSet<_> = known["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let loaded = Case::new(GOOD).load();
    let shown: BTreeSet<_> = loaded.values.iter().filter_map(|value| value.key.split('.').next()).collect();
    assert_eq!(shown, known);
}

#[test]
fn everything_can_be_given_in_the_environment() {
    let case = Case { dir: tempfile::tempdir().unwrap(), inputs: Inputs::default() }
        .variable("RELAY__DATABASE__URL", "mysql://relay@localhost/shop")
        .variable("RELAY__SINKS__MAIN__TYPE", "kafka")
        .variable("RELAY__SINKS__MAIN__BROKERS", "kafka:9093")
        .variable("RELAY__SINKS__MAIN__PROPERTIES__SECURITY_PROTOCOL", "SASL_SSL")
        .variable("RELAY__SINKS__MAIN__PROPERTIES__SASL_MECHANISM", "PLAIN")
        .variable("RELAY__ROUTES__0__TOPICS", "*")
        .variable("RELAY__ROUTES__0__SINK", "main")
        .variable("RELAY__RELAY__LANES", "0,7")
        .variable("RELAY__RETENTION__SENT", "0")
        .variable("RELAY__HTTP__LISTEN", "off");
    let config = case.load().config;
    let kafka: &KafkaConfig = config.sinks["main"].of().unwrap();
    assert_eq!(kafka.properties["security.protocol"].text(), "SASL_SSL");
    assert_eq!((config.routes[0].target.as_str(), config.routes[0].sink.as_str()), ("{topic}", "main"));
    assert_eq!((config.relay.lanes, config.retention.sent, config.http.listen), (vec![0, 7], Duration::ZERO, None));
}

#[test]
fn the_example_is_a_good_configuration() {
    let loaded = Case::new(&example()).load();
    assert_eq!(loaded.config.sinks.len(), 1);
}

#[test]
fn a_missing_file_is_named() {
    let mut case = Case::new(GOOD);
    case.inputs.file = Some(case.dir.path().join("relay.tml"));
    assert_eq!(
        case.problems()[0],
        "DIR/relay.tml: the file cannot be read (No such file or directory (os error 2)): see --config and RELAY_CONFIG"
    );
}

#[test]
fn unknown_keys_are_named_with_their_place_and_the_nearest_name() {
    assert_eq!(
        problems_with(
            "[relay]\n leese = \"30s\"\nunheard_of = 1\n[retri]\nbase = \"1s\"\n[sinks.x]\ntype = \"null\"\ntipe = 1\n"
        ),
        [
            "DIR/relay.toml:10:2: unknown key `relay.leese`: did you mean `relay.lease`?",
            "DIR/relay.toml:11:1: unknown key `relay.unheard_of`: remove it, or see `relay config example`",
            "DIR/relay.toml:12:2: unknown key `retri`: did you mean `retry`?",
            "DIR/relay.toml:16:1: unknown key `sinks.x.tipe`: did you mean `sinks.x.type`?",
        ]
    );
    let case = Case::new(GOOD).variable("RELAY__RELAY__LEESE", "1s").set("relay.leese", "1s");
    assert_eq!(
        case.problems(),
        [
            "variable RELAY__RELAY__LEESE: unknown variable `RELAY__RELAY__LEESE`: did you mean `RELAY__RELAY__LEASE`?",
            "flag --set relay.leese: unknown key `relay.leese`: did you mean `relay.lease`?",
        ]
    );
}

#[test]
fn a_key_that_is_given_twice_is_refused() {
    assert_eq!(
        problems_with("[relay]\nreaders = 2\nreaders = 3\n"),
        ["DIR/relay.toml:11:1: the key `readers` is given twice: remove one of the two"]
    );
}

#[test]
fn what_is_not_toml_is_named_without_its_text() {
    let problems = problems_with("[log]\nlevel = \"hunter2\n");
    assert!(problems[0].starts_with("DIR/relay.toml:10:"), "{problems:?}");
    assert!(problems[0].contains("this is not TOML: ") && !problems.concat().contains("hunter2"), "{problems:?}");
}

#[test]
fn wrong_types_and_numbers_without_unit_are_refused() {
    for (line, expected) in [
        (
            "relay.lease = 30",
            r#"`relay.lease` must be a time above zero with its unit, such as "30s", "500ms", "5m" or "7d", not 30"#,
        ),
        (
            "relay.lease = \"0s\"",
            r#"`relay.lease` must be a time above zero with its unit, such as "30s", "500ms", "5m" or "7d", not "0s""#,
        ),
        (
            "relay.claim_bytes = \"4MB\"",
            r#"`relay.claim_bytes` must be a size from 64KiB to 16GiB with its unit, such as "64KiB" or "4MiB", not "4MB""#,
        ),
        ("relay.readers = \"2\"", "`relay.readers` must be a whole number from 1 to 64, not \"2\""),
        ("relay.readers = 0", "`relay.readers` must be a whole number from 1 to 64, not 0"),
        ("relay.readers = 2.5", "`relay.readers` must be a whole number from 1 to 64, not 2.5"),
        ("relay.owner = true", "`relay.owner` must be a text in quotes, not true"),
        (
            "relay.lanes = [0, 65536]",
            "`relay.lanes` must be a list of numbers from 0 to 65535, such as [0, 7], not [0, 65536]",
        ),
        (
            "relay.lease = {}",
            r#"`relay.lease` must be a time above zero with its unit, such as "30s", "500ms", "5m" or "7d", not a table"#,
        ),
        (
            "retention.sent = 7",
            r#"`retention.sent` must be a time with its unit, such as "7d" or "12h", or 0 for ever, not 7"#,
        ),
        (
            "http.listen = \"9464\"",
            r#"`http.listen` must be an address with its port, such as "127.0.0.1:9464", or "off", not "9464""#,
        ),
        ("log.format = \"xml\"", r#"`log.format` must be "text" or "json", not "xml""#),
        (
            "log.level = \"a=b=c\"",
            r#"`log.level` must be error, warn, info, debug or trace, or a filter such as "info,outbox_relay=debug", not "a=b=c""#,
        ),
        ("retry = 3", "`retry` is a section, not a value: see `relay config example`"),
    ] {
        let problems = Case::new(&format!("{line}\n{GOOD}")).problems();
        assert_eq!(
            problems,
            [format!(
                "DIR/relay.toml:1:{}: {expected}",
                if line.starts_with("retry =") { 1 } else { line.find('.').unwrap() + 2 }
            )],
            "{line}"
        );
    }
}

#[test]
fn a_lease_shorter_than_its_deadlines_is_refused_with_the_numbers() {
    assert_eq!(
        problems_with("[relay]\nlease = \"15s\"\n"),
        ["DIR/relay.toml:10:1: `relay.lease` (15s) is shorter than publish_deadline (10s) + settle_deadline (5s) + \
             safety (5s) = 20s: another relay could take over messages that are still on their way. Raise the lease or \
             lower a deadline"]
    );
    assert_eq!(
        problems_with("[retry]\nbase = \"10m\"\n"),
        ["DIR/relay.toml:10:1: `retry.base` (600s) is longer than `retry.max` (300s): lower it"]
    );
}

#[test]
fn a_route_can_have_retries_of_its_own() {
    let retries = |lines: &str| {
        let retry = Case::new(&format!("{GOOD}{lines}")).load().config.routes.remove(0).retry;
        retry.map(|retry| (retry.base.as_secs(), retry.max.as_secs(), retry.max_attempts))
    };
    assert_eq!(retries(""), None);
    assert_eq!(retries("max_attempts = 2\n"), Some((1, 300, 2)));
    assert_eq!(retries("retry_base = \"2s\"\nretry_max = \"9s\"\n[retry]\nmax_attempts = 7\n"), Some((2, 9, 7)));
    let problems = Case::new(&format!("{GOOD}retry_max = \"500ms\"\n")).problems();
    let expected =
        "`routes.0.retry_base` (1s) is longer than `routes.0.retry_max` (500ms): lower it, or raise the other";
    assert_eq!(problems, [format!("DIR/relay.toml:9:1: {expected}")]);
}

#[test]
fn a_claim_must_fit_into_what_may_be_in_flight() {
    assert_eq!(
        problems_with("[relay]\nin_flight_messages = 6000\nclaim_messages = 7000\nin_flight_bytes = \"2MiB\"\n"),
        [
            "DIR/relay.toml:10:1: `relay.in_flight_messages` is less than `relay.claim_messages`: raise it",
            "DIR/relay.toml:12:1: `relay.in_flight_bytes` is less than `relay.claim_bytes`: raise it",
        ]
    );
}

#[test]
fn commands_that_need_the_database_alone_need_no_sink() {
    let case = Case::new("[database]\nurl = \"mysql://migrator@localhost/shop\"\n");
    assert!(load_for_database(&case.inputs).is_ok());
    assert_eq!(case.problems().len(), 2);
}

#[test]
fn the_address_to_listen_on_is_known_whatever_else_is_wrong() {
    let case = Case::new("[http]\nlisten = \"[::]:81\"\n[relay]\nleese = 1\n");
    assert_eq!(listen_address(&case.inputs), Some("[::]:81".parse().unwrap()));
}

#[test]
fn without_a_file_the_ways_to_name_one_are_told() {
    let problems = load(&Inputs::default()).unwrap_err().to_string();
    let place = "configuration (there is no relay.toml here, and neither --config nor RELAY_CONFIG names a file): ";
    assert!(problems.lines().all(|problem| problem.starts_with(place)), "{problems}");
}

#[test]
fn what_is_missing_is_named_with_an_example() {
    assert_eq!(
        Case::new("").problems(),
        [
            "DIR/relay.toml: `database.url` is missing: give one, such as url \
             = \"mysql://outbox_relay@db.example:3306/shop\"",
            "DIR/relay.toml: there is no sink: add a section [sinks.main] with a type (kafka, rabbitmq, http, stdout, \
             null)",
            "DIR/relay.toml: there is no route: add [[routes]] with topics = \"*\" and the name of a sink",
        ]
    );
    assert_eq!(
        problems_with(
            "[sinks.x]\n[sinks.k]\ntype = \"kafka\"\n[sinks.r]\ntype = \"rabbitmq\"\n[[routes]]\nsink = \"r\"\n"
        ),
        [
            "DIR/relay.toml:10:8: `sinks.k.brokers` is missing: give one, such as brokers \
             = \"kafka-1:9093,kafka-2:9093\"",
            "DIR/relay.toml:12:8: `sinks.r.url` is missing: give one, such as url \
             = \"amqps://relay@rabbit.example:5671/%2f\"",
            "DIR/relay.toml:9:8: `sinks.x.type` is missing: give one, such as type = \"kafka\"",
            "DIR/relay.toml:14:1: `routes.1.topics` is missing: give one, such as topics = \"*\"",
            "DIR/relay.toml:14:1: `routes.1.exchange` is missing: give one, such as exchange = \"amq.topic\"",
        ]
    );
}

#[test]
fn a_route_leads_to_a_sink_that_exists_with_keys_of_its_type() {
    assert_eq!(
        problems_with("[[routes]]\ntopics = \"x\"\nsink = \"mian\"\n"),
        ["DIR/relay.toml:11:1: `routes.1.sink` names the sink `mian`, which does not exist: there is main"]
    );
    assert_eq!(
        problems_with(&format!(
            "{}[[routes]]\ntopics = \"x\"\nsink = \"k\"\n",
            KAFKA.replace("\"kafka\"", "\"kafak\"")
        )),
        [
            "DIR/relay.toml:10:1: `sinks.k.type` must be \"kafka\" or \"rabbitmq\" or \"http\" or \"stdout\" or \"null\", \
             not \"kafak\""
        ]
    );
    assert_eq!(
        problems_with(&format!(
            "{KAFKA}window = 3\n[[routes]]\ntopics = \"x\"\nsink = \"k\"\nexchange = \"e\"\ntopic = \"a-{{typ}}\"\n"
        )),
        [
            "DIR/relay.toml:12:1: `sinks.k.window` belongs to rabbitmq, the sink is kafka: remove it",
            "DIR/relay.toml:16:1: `routes.1.exchange` belongs to rabbitmq, the sink is kafka: remove it",
            "DIR/relay.toml:17:1: `routes.1.topic` has `{typ}`: it may have {topic}, {type}, {lane}",
        ]
    );
    assert_eq!(
        problems_with("[sinks.Main]\ntype = \"null\"\n[sinks.database]\ntype = \"null\"\n"),
        [
            "DIR/relay.toml:9:8: the sink cannot be called `Main`: use lowercase letters, digits and `_`, and not \
             `database`",
            "DIR/relay.toml:11:8: the sink cannot be called `database`: use lowercase letters, digits and `_`, and not \
             `database`",
        ]
    );
}

#[cfg(feature = "kafka")]
#[test]
fn properties_that_weaken_acks_or_idempotence_are_refused() {
    assert_eq!(
        problems_with(&format!(
            "{KAFKA}[sinks.k.properties]\n\"acks\" = 1\nenable.idempotence = false\n\"linger.ms\" = 5\n"
        )),
        [
            "DIR/relay.toml:13:1: `sinks.k.properties`: remove `acks`: a message counts as sent only when all in-sync \
             replicas have it",
            "DIR/relay.toml:14:8: `sinks.k.properties`: remove `enable.idempotence`: without it a retried request \
             reorders a key",
        ]
    );
}

#[cfg(feature = "kafka")]
#[test]
fn a_kafka_broker_has_the_deadline_of_a_publish_for_its_reply() {
    let reply = |text: &str| {
        let config = Case::new(&format!("{GOOD}{KAFKA}{text}")).load().config;
        let kafka: &KafkaConfig = config.sinks["k"].of().unwrap();
        kafka.properties["socket.timeout.ms"].text().to_owned()
    };
    assert_eq!(reply(""), "10000");
    assert_eq!(reply("[relay]\npublish_deadline = \"2s\"\n"), "2000");
    assert_eq!(reply("[relay]\nlease = \"1h\"\npublish_deadline = \"10m\"\n"), "300000", "librdkafka's longest");
    assert_eq!(reply("[sinks.k.properties]\nsocket.timeout.ms = 7000\n"), "7000");
}
