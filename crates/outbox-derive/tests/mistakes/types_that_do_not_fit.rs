use outbox_core::Event;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct KeyWithoutText {
    #[event(key)]
    order: Vec<u8>,
}

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", no_key)]
struct LaneThatIsTooWide {
    #[event(lane)]
    lane: u32,
}

#[derive(Event)]
#[event(topic = "orders", type = "order.placed", no_key)]
struct NotSerializable;

fn main() {}
