//! Settings that concern routes.

use mysql_outbox::config::{Binding, Envelope};

use crate::{Case, GOOD, HTTP, KAFKA, RABBIT};

#[test]
fn the_source_of_events_is_a_uri_reference() {
    let examples = [
        "https://github.com/cloudevents",
        "mailto:cncf-wg-serverless@lists.cncf.io",
        "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66",
        "/cloudevents/spec/pull/123",
        "1-555-123-4567",
    ];
    let own = ["/", "{topic}", "//h/{topic}?lane={lane}#f", "./1:a", "x+y-1.z:{topic}", "/%C3%A4"];
    for source in examples.into_iter().chain(own) {
        let case = Case::new(GOOD).set("routes.0.envelope", "cloudevents-json");
        let config = case.set("routes.0.source", source).load().config;
        assert_eq!(config.routes[0].source, source);
    }
    for source in ["", " ", "/a b", "/ä", "/%zz", "/%c", "1:a", ":", "{topic}:a", "/a#b#c", "/[x]", "\\a", "/a}"] {
        let expected = "flag --set routes.0.source: `routes.0.source` is not a URI reference: give one, such \
                        as \"https://shop.example/{topic}\"";
        let case = Case::new(GOOD).set("routes.0.envelope", "cloudevents-binary");
        assert_eq!(case.set("routes.0.source", source).problems(), [expected], "{source}");
    }
    for envelope in ["raw", "debezium"] {
        let expected = "flag --set routes.0.source: `routes.0.source` is for the envelopes of CloudEvents: remove it, \
                        or set `routes.0.envelope`";
        let case = Case::new(GOOD).set("routes.0.envelope", envelope);
        assert_eq!(case.set("routes.0.source", "/shop").problems(), [expected], "{envelope}");
    }
    assert_eq!(
        Case::new(GOOD).set("routes.0.source", "/{type}").set("routes.0.envelope", "cloudevents-json").problems(),
        ["flag --set routes.0.source: `routes.0.source` has `{type}`: it may have {topic}, {lane}"]
    );
    assert_eq!(
        Case::new(GOOD).set("routes.0.envelope", "avro").problems(),
        ["flag --set routes.0.envelope: `routes.0.envelope` must be \"raw\" or \"cloudevents-binary\" \
             or \"cloudevents-json\" or \"debezium\", not \"avro\""]
    );
}

#[test]
fn an_envelope_names_attributes_as_the_broker_of_its_route_does() {
    let routes = |sink: &str| format!("topics = \"x\"\nsink = \"{sink}\"\nenvelope = \"cloudevents-json\"\n");
    let rabbit = format!("{RABBIT}url = \"amqp://u@localhost\"\n[[routes]]\nexchange = \"\"\n{}", routes("r"));
    let http = format!("{HTTP}url = \"https://h\"\n[[routes]]\npath = \"in/{{topic}}\"\n{}", routes("h"));
    let config = Case::new(&format!("{GOOD}{KAFKA}[[routes]]\n{}{rabbit}{http}", routes("k"))).load().config;
    let envelopes: Vec<_> = config.routes.iter().map(|route| route.envelope).collect();
    let [kafka, amqp] = [Binding::KAFKA, Binding::AMQP].map(Envelope::CloudEventsJson);
    assert_eq!(envelopes[..3], [Envelope::Raw, kafka, amqp]);
    assert!(matches!(envelopes[3], Envelope::CloudEventsJson(Binding { prefix: "ce-", .. })));
    assert_eq!(config.routes[3].target, "in/{topic}");
}

#[test]
fn the_canary_needs_a_route_to_where_it_can_be_read() {
    let rabbit = |exchange: &str| {
        format!(
            "{RABBIT}url = \"amqp://u@localhost\"\n[[routes]]\ntopics = \"c\"\nsink = \"r\"\nexchange \
             = \"{exchange}\"\n"
        )
    };
    let [named, unnamed] =
        ["canaries", ""].map(|exchange| GOOD.replace("[[routes]]", &format!("{}[[routes]]", rabbit(exchange))));
    let kafka = GOOD.replace("\"stdout\"", "\"kafka\"\nbrokers = \"localhost:9092\"");
    let missing = "flag --set canary.topic: `canary.topic` is \"c\", and no route sends it to a Kafka topic or to an \
                   exchange of RabbitMQ: add one";
    let case = |text: &str| Case::new(text).set("canary.topic", "c");
    assert_eq!([&named, &kafka].map(|text| case(text).load().config.canary.topic.is_some()), [true; 2]);
    assert_eq!([&unnamed, GOOD].map(|text| case(text).problems()), [[missing]; 2]);
    for interval in ["1s", "1m"] {
        case(&kafka).set("canary.interval", interval).load();
    }
    for interval in ["999ms", "61s"] {
        let expected = ["flag --set canary.interval: `canary.interval` must be from 1s to 60s"];
        assert_eq!(case(&kafka).set("canary.interval", interval).problems(), expected);
    }
}
