use outbox_core::Event;

#[derive(serde::Serialize, Event)]
#[event(topics = "orders", type = "order.placed", no_key)]
struct OfTheType;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct OfAField {
    #[event(topic)]
    order: u64,
}

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
struct TwoKeys {
    #[event(key)]
    order: u64,
    #[event(key)]
    customer: u64,
}

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed", key)]
struct KeyOfTheType {
    order: u64,
}

#[derive(Event)]
#[event(topic = "orders", type = "order.placed", no_key, encode = to_bytes)]
struct WhatBytes;

#[derive(serde::Serialize, Event)]
#[event(topic = "orders", type = "order.placed")]
enum FieldOfAnEnum {
    Placed {
        #[event(key)]
        order: u64,
    },
}

#[derive(Event)]
#[event(topic = "orders", type = "order.placed", no_key)]
union NeitherStructNorEnum {
    order: u64,
}

fn to_bytes(_: &WhatBytes) -> Vec<u8> {
    Vec::new()
}

fn main() {}
