use outbox_core::Event;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders/placed", type = "order.placed", no_key)]
struct Topic;

#[derive(serde::Serialize, Event)]
#[event(topic = orders, type = "order.placed", no_key)]
struct NotAString;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "", no_key)]
struct Type;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", no_key, delay = "30")]
struct Delay;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", no_key, lane = 65536)]
struct Lane;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", no_key, lane = "3")]
struct NotANumber;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", no_key, delay = "36501d")]
struct LongDelay;

fn main() {}
