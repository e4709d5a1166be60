use outbox_core::Event;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", no_key, sequenced)]
struct WithoutKey;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", sequenced, delay = "30s")]
struct DelayOfTheType {
    #[event(key)]
    order: u64,
}

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", sequenced)]
struct DelayOfAField {
    #[event(key)]
    order: u64,
    #[event(delay)]
    wait: std::time::Duration,
}

fn main() {}
