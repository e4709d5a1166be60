//! The sections of the process itself: its listeners, its log, its spans and its canary.

use super::{
    LogFormat, Role,
    section::{Words, section},
};

const LOG_FORMATS: Words<LogFormat, 2> = [("text", LogFormat::Text), ("json", LogFormat::Json)];
const ANONYMOUS: Words<Option<Role>, 3> =
    [("viewer", Some(Role::Viewer)), ("operator", Some(Role::Operator)), ("nobody", None)];

section! {
    /// The listener for `/metrics`, `/livez` and `/readyz`.
    Http in "http";
    keys {}
    given {}
    read {
        /// Address and port; `off`: none. There is no authentication: elsewhere than on loopback keep it inside a
        /// trusted network.
        listen: Address = Default "127.0.0.1:9464";
    }
}

section! {
    /// The listener of `relay api`.
    ApiConfig in "api";
    keys {}
    given {}
    read {
        /// Address and port; elsewhere than on loopback callers need tokens. There is no TLS: put a proxy with TLS
        /// before it.
        listen: Address = Default "127.0.0.1:9465";
        /// A unix socket instead of the address. Its owner and its group may ask; the process removes it at its end.
        socket: File = Optional "/run/outbox-relay/api.sock";
        /// A file with a line for each token: a name, a role (`viewer`, `revealer`, `operator` or `proxy`), and the
        /// token's SHA-256 in hexadecimal digits. It is read again at each request.
        tokens_file: File = Optional "/etc/outbox-relay/tokens";
        /// The role of everybody on this machine, if there is no `tokens_file`.
        anonymous: Words(ANONYMOUS: Option<Role>) = Default "viewer";
        /// The names under which it is called, separated by commas, such as that of a proxy. The address that it
        /// listens on is always one.
        hosts: Text = Default "localhost";
        /// Most requests of one caller in a second.
        requests_per_second: Count(1, 10_000) = Default "20";
    }
}

section! {
    /// The pages of `relay console`.
    ConsoleConfig in "console";
    keys {}
    given {}
    read {
        /// The path below which a proxy serves the pages, such as `/outbox`. They answer at `/`, too.
        prefix: Text = Default "/";
        /// The address of a message's trace; `{trace_id}` stands for its id.
        trace_url: Text = Optional "https://traces.example/trace/{trace_id}";
        /// A folder with a configuration of each outbox, `NAME.toml`: a section `[database]`, or `console.via`. The
        /// first page shows all of them.
        outboxes: File = Optional "/etc/outbox-relay/outboxes";
        /// The address of a `relay api` to ask in place of a database.
        via: Text = Optional "https://outbox.example";
        /// A file with a token for it. With the role `proxy` the audit there names the person; with another role it
        /// names the token.
        token_file: File = Optional "/etc/outbox-relay/token";
    }
}

section! {
    /// Logs, on standard error.
    Log in "log";
    keys {}
    given {}
    read {
        /// A level, or a filter such as `info,outbox_relay=debug`. Lines of the program itself have the target
        /// `mysql_outbox`.
        level: Level = Default "info";
        /// Text for people or JSON for programs.
        format: Words(LOG_FORMATS: LogFormat) = Default "text";
    }
}

section! {
    /// Spans, over OTLP.
    Tracing in "tracing";
    keys {
        /// The address of a collector that takes OTLP over HTTP; the relay adds `/v1/traces`. Not set: no spans. A
        /// claim has spans if the trace of a message that it publishes is sampled. The variable
        /// `OTEL_EXPORTER_OTLP_HEADERS` adds headers, such as those of a login: `authorization=Basic%20…`.
        otlp_endpoint: Text = Optional "http://127.0.0.1:4318";
    }
    given {
        /// The collector; `None`: no spans.
        otlp_endpoint: Option<String>;
    }
    read {
        /// The name of the relays in traces.
        service_name: Text = Default "outbox-relay";
    }
}

section! {
    /// A message of the relay's own, sent now and then, and read at its destination.
    Canary in "canary";
    keys {
        /// The topic of the messages; a route sends it to a Kafka topic, or to an exchange of RabbitMQ. Not set: none.
        /// The account needs `deploy/grants/canary.sql`, and the login at the broker must be able to read.
        topic: Text = Optional "outbox.canary";
    }
    given {
        /// The topic; `None`: no canary.
        topic: Option<String>;
    }
    read {
        /// The time between the starts of two, and the longest that one may take: 1 s to 60 s. The alert
        /// `OutboxCanaryLost` fires if none has come back for 110 s.
        interval: Duration = Default "30s";
    }
}
