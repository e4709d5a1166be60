//! Addresses, certificates and secrets. Settings that would expose a secret on the network or to other users are
//! refused, and no problem repeats a secret.

use std::fs;

use mysql_outbox::config::{KafkaConfig, RabbitMqConfig, ValueOrigin};

use super::{Case, GOOD, HTTP, KAFKA, RABBIT, problems_with};

#[test]
fn another_machine_is_reached_by_tls_unless_the_configuration_says_otherwise() {
    let remote = "[sinks.k]\ntype = \"kafka\"\nbrokers = \"localhost:9092,kafka:9092\"\n[sinks.r]\ntype \
                  = \"rabbitmq\"\nurl = \"amqp://u:hunter2@rabbit/%2f\"\n";
    assert_eq!(
        problems_with(remote),
        [
            "DIR/relay.toml:11:1: `sinks.k.brokers` would be reached without TLS: set \"security.protocol\" to \"ssl\" \
             or \"sasl_ssl\" in sinks.k.properties, or plaintext = true",
            "DIR/relay.toml:14:1: `sinks.r.url` would be reached without TLS: use amqps://, or set plaintext = true",
        ]
    );
    Case::new(&format!("{GOOD}{remote}")).set("sinks.k.plaintext", "true").set("sinks.r.plaintext", "true").load();
}

#[test]
fn logins_of_kafka_that_the_program_does_not_know_are_refused() {
    let sink = "[sinks.k]\ntype = \"kafka\"\nbrokers = \"localhost:9092\"\nproperties = { \"security.protocol\" = \
                \"SASL_PLAINTEXT\"";
    let kerberos = "set `sasl.mechanism` to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER: Kerberos (GSSAPI), the \
                    default, is not in this program";
    let tokens = "set `sasl.oauthbearer.method` to oidc: the relay takes its tokens from an issuer alone";
    for (more, expected) in [
        ("", kerberos),
        (", \"sasl.mechanism\" = \"GSSAPI\"", kerberos),
        (", \"sasl.mechanism\" = \"OAUTHBEARER\"", tokens),
    ] {
        let problems = problems_with(&format!("{sink}{more} }}\n"));
        assert!(matches!(&*problems, [one] if one.ends_with(expected)), "{problems:?}");
    }
    let oidc = ", \"sasl.mechanism\" = \"OAUTHBEARER\", \"sasl.oauthbearer.method\" = \"oidc\" }\n";
    Case::new(&format!("{GOOD}{sink}{oidc}")).load();
}

#[test]
fn urls_that_cannot_be_used_are_refused_and_not_repeated() {
    for (url, expected) in [
        (
            "postgres://u:hunter2@h/db",
            "`database.url` does not read as mysql:// or mariadb://user:password@host:port/name",
        ),
        ("hunter2", "`database.url` does not read as mysql:// or mariadb://user:password@host:port/name"),
        (
            "mysql://u:hunter2@h:3306",
            "`database.url` names no database: put its name behind the port, as in mysql://user@host:3306/shop",
        ),
        (
            "mysql://u:hunter2@h:hunter2/db",
            "`database.url` does not read as mysql:// or mariadb://user:password@host:port/name",
        ),
    ] {
        let problems = Case::new(GOOD).variable("RELAY__DATABASE__URL", url).problems();
        assert_eq!(problems, [format!("variable RELAY__DATABASE__URL: {expected}")]);
    }
}

#[test]
fn a_secret_comes_from_one_place_and_a_file_that_others_can_read_is_warned_of() {
    let case = Case::new(&GOOD.replace("url =", "password_file = \"DIR/secret\"\nurl ="));
    let text = fs::read_to_string(case.inputs.file.as_ref().unwrap()).unwrap();
    fs::write(case.inputs.file.as_ref().unwrap(), text.replace("DIR", &case.dir.path().display().to_string())).unwrap();
    let problem = |expected: &str| {
        assert_eq!(
            case.problems(),
            [format!("DIR/relay.toml:3:1: `database.password_file`: the file \"DIR/secret\" {expected}")]
        );
    };
    problem("cannot be read (No such file or directory (os error 2)): correct the path or its permissions");
    case.secret("", 0o600);
    problem("is empty: write the secret into it");
    for (mode, who) in [(0o644, "every user of this machine"), (0o640, "its group")] {
        case.secret("hunter2", mode);
        let warnings: Vec<_> = case.load().warnings.iter().map(|warning| warning.text.clone()).collect();
        let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
        assert!(warning.contains(&format!("can be read by {who} (mode {mode:04o}): chmod 600")), "{warning}");
    }
    case.secret("hunter2\n", 0o600);
    assert_eq!(case.load().warnings, []);
    assert_eq!(case.load().config.database.password.unwrap().text(), "hunter2");

    let both = case.variable("RELAY__DATABASE__PASSWORD", "hunter3");
    let at = "variable RELAY__DATABASE__PASSWORD and DIR/relay.toml:3:1";
    assert_eq!(
        both.problems(),
        [format!("{at}: both `database.password` and `database.password_file` are given: remove one of the two")]
    );
    let twice = Case::new(GOOD)
        .variable("RELAY__DATABASE__URL", "mysql://relay:hunter2@localhost/shop")
        .variable("RELAY__DATABASE__PASSWORD", "hunter3");
    assert_eq!(
        twice.problems(),
        ["variable RELAY__DATABASE__URL: `database.url` holds a password, and one is given apart: remove one of the \
             two"]
    );
}

#[test]
fn a_password_apart_is_put_into_the_url_of_rabbitmq_whatever_it_holds() {
    let case = Case::new(&format!("{GOOD}{RABBIT}url = \"amqp://u@localhost:5672/%2f\"\npassword = \"p@:/?#ü%41\"\n"));
    let sinks = case.load().config.sinks;
    let rabbit: &RabbitMqConfig = sinks["r"].of().unwrap();
    assert_eq!(rabbit.address().unwrap().as_str(), "amqp://u:p%40%3A%2F%3F%23%C3%BC%2541@localhost:5672/%2f");
}

#[test]
fn a_file_of_authorities_has_a_certificate() {
    let case = Case::new(&format!("{GOOD}{KAFKA}"));
    let path = case.dir.path().join("ca.pem");
    let url = |mode: &str| format!("mysql://relay@localhost/shop?ssl-mode={mode}&ssl-ca={}", path.display());
    let of_kafka = "RELAY__SINKS__K__PROPERTIES__SSL_CA_LOCATION";
    // No program would open it.
    let unused = Case::new(&format!("{GOOD}{KAFKA}")).variable("RELAY__DATABASE__URL", &url("required"));
    unused.variable(of_kafka, &path.display().to_string()).load();
    let case = case
        .variable("RELAY__DATABASE__URL", &url("verify_identity"))
        .variable("RELAY__SINKS__K__PROPERTIES__SECURITY_PROTOCOL", "ssl")
        .variable(of_kafka, &path.display().to_string());
    let problem = |expected: &str| {
        let file = format!("the file \"DIR/ca.pem\" {expected}");
        assert_eq!(
            case.problems(),
            [
                format!("variable RELAY__DATABASE__URL: ssl-ca of `database.url`: {file}"),
                format!("variable {of_kafka}: `sinks.k.properties.ssl.ca.location`: {file}"),
            ]
        );
    };
    problem("cannot be read (No such file or directory (os error 2)): correct the path or its permissions");
    for text in ["", "no certificate", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
        fs::write(&path, text).unwrap();
        problem("holds no certificate: it must have one at least, as PEM (-----BEGIN CERTIFICATE-----)");
    }
    let whole = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for text in [&whole[..40], &whole.replace("AAAA", "!"), &format!("{whole}{}", &whole[..30])] {
        fs::write(&path, text).unwrap();
        problem("is damaged or cut off: write it again, as PEM");
    }
    fs::write(&path, whole).unwrap();
    case.load();
    let folder = case.dir.path().display().to_string();
    for known_to_openssl in ["probe", &folder] {
        let case = Case::new(&format!("{GOOD}{KAFKA}")).set("sinks.k.properties.security.protocol", "ssl");
        case.set("sinks.k.properties.ssl.ca.location", known_to_openssl).load();
    }
}

#[test]
fn a_password_goes_to_another_machine_by_tls_unless_the_configuration_says_otherwise() {
    for mode in ["disabled", "preferred"] {
        let url = format!("mysql://relay:hunter2@db.example/shop?ssl-mode={mode}");
        let case = Case::new(GOOD).variable("RELAY__DATABASE__URL", &url);
        let problems = case.problems().concat();
        assert!(problems.contains("without TLS") && problems.contains("database.plaintext = true"), "{problems}");
        case.set("database.plaintext", "true").load();
    }
    for url in ["relay:hunter2@localhost/shop", "relay:hunter2@[::1]/shop", "relay@db.example/shop"] {
        Case::new(GOOD).variable("RELAY__DATABASE__URL", &format!("mysql://{url}?ssl-mode=disabled")).load();
    }
    let socket = "mysql://relay:hunter2@db.example/shop?ssl-mode=disabled&socket=/run/mysqld.sock";
    Case::new(GOOD).variable("RELAY__DATABASE__URL", socket).load();
}

#[test]
fn the_login_that_reads_the_log_needs_a_name_and_keeps_its_password() {
    let alone = || Case::new(GOOD).variable("RELAY__DATABASE__LOG_PASSWORD", "hunter2");
    assert_eq!(
        alone().problems(),
        ["variable RELAY__DATABASE__LOG_PASSWORD: `database.log_password` needs `database.log_user`"]
    );
    assert_eq!(
        alone().set("database.log_user", "").problems(),
        ["flag --set database.log_user: `database.log_user` is empty: name an account, or leave it out"]
    );
    let named = alone().set("database.log_user", "outbox_log");
    let loaded = named.load();
    assert_eq!(loaded.config.database.log.as_ref().map(|log| log.user.as_str()), Some("outbox_log"));
    assert!(!format!("{loaded:?}").contains("hunter2"));
    let remote = "mysql://relay@db.example/shop?ssl-mode=disabled";
    let problems = named.variable("RELAY__DATABASE__URL", remote).problems().concat();
    assert!(problems.contains("without TLS"), "{problems}");
}

#[test]
fn the_files_of_a_rabbitmq_sink_are_looked_into() {
    let case = Case::new(&format!(
        "{GOOD}{RABBIT}url = \"amqps://u@rabbit\"\nca_file = \"/nowhere/ca.pem\"\nkey_file = \"/nowhere/key.pem\"\n"
    ));
    let missing = "the file \"/nowhere/ca.pem\" cannot be read (No such file or directory (os error 2)): correct the \
                   path or its permissions";
    assert_eq!(
        case.problems(),
        [
            format!("DIR/relay.toml:12:1: `sinks.r.ca_file`: {missing}"),
            "DIR/relay.toml:13:1: `sinks.r.key_file` needs `sinks.r.certificate_file`".to_owned(),
        ]
    );
}

#[test]
fn the_management_api_is_asked_by_tls_with_a_secret_of_its_own() {
    let rabbit = |keys: &str| Case::new(&format!("{GOOD}{RABBIT}url = \"amqp://u:hunter2@localhost\"\n{keys}"));
    let plain = rabbit("management_url = \"http://u:hunter2@rabbit:15672\"\n");
    let problem = "DIR/relay.toml:12:1: `sinks.r.management_url` would be reached without TLS: use https://, or set \
                   plaintext = true";
    assert_eq!(plain.problems(), [problem]);
    plain.set("sinks.r.plaintext", "true").load();
    let twice = rabbit("management_url = \"https://u:hunter2@rabbit:15671\"\nmanagement_password = \"hunter3\"\n");
    assert_eq!(
        twice.problems(),
        ["DIR/relay.toml:12:1: `sinks.r.management_url` holds a password, and one is given apart: remove one of the \
             two"]
    );
    for keys in ["", "management_url = \"https://rabbit:15671\"\n"] {
        let problems = rabbit(&format!("management_password = \"hunter3\"\n{keys}")).problems();
        let problem = "DIR/relay.toml:12:1: `sinks.r.management_password` needs a user in `sinks.r.management_url`: \
                       add it, or remove the password";
        assert_eq!(problems, [problem], "{keys}");
    }
    let case = rabbit("management_url = \"https://u:hunter2@rabbit:15671\"\n");
    let loaded = case.load();
    assert!(!format!("{loaded:?}").contains("hunter2"));
    // Its authority may be named where the messages go without TLS.
    let missing = case.set("sinks.r.ca_file", "/nowhere/ca.pem").problems();
    assert!(missing.len() == 1 && missing[0].contains("cannot be read"), "{missing:?}");
}

#[test]
fn the_url_and_the_secret_of_an_http_sink_have_their_form_and_are_not_repeated() {
    let http = |keys: &str| Case::new(&format!("{GOOD}{HTTP}{keys}"));
    let of_url = "DIR/relay.toml:11:1: `sinks.h.url` must be https://host:port/path, without user, query and fragment";
    for url in ["", "/hunter2", "ftp://h", "https://u:hunter2@h", "https://h/?key=hunter2", "https://h/#hunter2"] {
        assert_eq!(http(&format!("url = \"{url}\"\n")).problems(), [of_url], "{url}");
    }
    let plain = http("url = \"http://hooks/hunter2\"\n");
    let problem =
        "DIR/relay.toml:11:1: `sinks.h.url` would be reached without TLS: use https://, or set plaintext = true";
    assert_eq!(plain.problems(), [problem]);
    plain.set("sinks.h.plaintext", "true").load();
    for secret in ["hunter2", "whsec_aHVudGVyMg=="] {
        let problem = "DIR/relay.toml:12:1: `sinks.h.secret` must be `whsec_` and 24 to 64 bytes in base64; several \
                       are separated by spaces";
        assert_eq!(http(&format!("url = \"https://h\"\nsecret = \"{secret}\"\n")).problems(), [problem]);
    }
    let file = "DIR/relay.toml:12:1: `sinks.h.ca_file` is for https:// alone: use that, or remove it";
    assert_eq!(http("url = \"http://[::1]:80\"\nca_file = \"/nowhere\"\n").problems()[1..], [file]);
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let case = http(&format!("url = \"https://h/hunter2\"\nsecret = \"{secret}\"\n"));
    let loaded = format!("{:?}", case.load());
    assert!(!loaded.contains("hunter2") && !loaded.contains(secret), "{loaded}");
}

#[test]
fn a_key_that_several_types_of_sink_have_belongs_to_each_of_them() {
    let case = Case::new(&GOOD.replace("\"stdout\"", "\"stdout\"\nurl = \"https://h\""));
    assert_eq!(
        case.problems(),
        ["DIR/relay.toml:6:1: `sinks.main.url` belongs to rabbitmq and http, the sink is stdout: remove it"]
    );
}

#[test]
fn the_address_of_a_collector_holds_no_secret() {
    let endpoint = |url: &str| Case::new(GOOD).set("tracing.otlp_endpoint", url);
    for url in ["https://me@collector:4318", "http://:hunter2@collector:4318"] {
        let problems = endpoint(url).problems();
        assert!(problems.len() == 1 && problems[0].contains("OTEL_EXPORTER_OTLP_HEADERS"), "{problems:?}");
        assert!(!problems[0].contains("hunter2"), "{problems:?}");
    }
    for url in ["collector:4318", "grpc://collector:4317", ""] {
        let problems = endpoint(url).problems();
        assert!(problems.len() == 1 && problems[0].contains("must be an address such as"), "{url}: {problems:?}");
    }
    for url in ["http://collector:4318/v1/traces", "https://collector/?key=hunter2"] {
        let problems = endpoint(url).problems();
        assert!(problems.len() == 1 && problems[0].contains("must end before /v1/traces"), "{url}: {problems:?}");
        assert!(!problems[0].contains("hunter2"), "{problems:?}");
    }
    let loaded = endpoint("https://collector:4318/base/").load();
    assert_eq!(loaded.config.tracing.otlp_endpoint.as_deref(), Some("https://collector:4318/base/"));
}

#[test]
fn a_property_that_loads_code_is_refused() {
    let case = Case::new(&format!("{GOOD}{KAFKA}")).set("sinks.k.properties.plugin.library.paths", "/tmp/x.so");
    assert!(case.problems().concat().contains("remove `plugin.library.paths`: it loads code"), "{:?}", case.problems());
}

#[test]
fn flags_take_no_secret() {
    assert_eq!(
        Case::new(GOOD).set("database.password", "hunter2").problems(),
        ["flag --set database.password: arguments can be read by every user of this machine: set \
             RELAY__DATABASE__PASSWORD or RELAY__DATABASE__PASSWORD_FILE instead"]
    );
}

#[test]
fn a_property_of_librdkafka_can_be_read_from_a_file() {
    let case = Case::new(&format!("{GOOD}{KAFKA}"));
    let path = case.secret("hunter2\n", 0o600).display().to_string();
    let case = case.variable("RELAY__SINKS__K__PROPERTIES__SASL_PASSWORD_FILE", &path);
    let sinks = case.load().config.sinks;
    let kafka: &KafkaConfig = sinks["k"].of().unwrap();
    assert_eq!(kafka.properties["sasl.password"].text(), "hunter2");
}

#[test]
fn no_secret_is_printed() {
    let case = Case::new(&format!(
        "{GOOD}{KAFKA}[sinks.k.properties]\n\"sasl.password\" = \"hunter2\"\n{RABBIT}url \
                                   = \"amqp://u:hunter2@localhost/%2f\"\n"
    ))
    .variable("RELAY__DATABASE__URL", "mysql://relay:hunter2@localhost/shop");
    let loaded = case.load();
    assert!(!format!("{loaded:?}").contains("hunter2"));
    let url = loaded.values.iter().find(|value| value.key == "database.url").unwrap();
    assert_eq!((url.value.as_str(), &url.origin), ("***", &ValueOrigin::Variable("RELAY__DATABASE__URL".into())));
    let wrong = Case::new("[database]\nurl = [\"hunter2\"]\npassword = [\"hunter2\"]\n");
    assert!(!wrong.problems().concat().contains("hunter2"), "{:?}", wrong.problems());
}
