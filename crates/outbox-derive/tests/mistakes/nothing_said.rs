use outbox_core::Event;

#[derive(serde::Serialize, Event)]
struct NothingSaid {
    order: u64,
}

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct NoWordOfTheKey {
    order: u64,
}

fn main() {}
