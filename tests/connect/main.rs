//! The findings of `relay check --connect` when it connects.

#![cfg(all(feature = "kafka", feature = "rabbitmq"))]

mod check;
mod impostors;
mod issuer;
mod login;
mod oauth;
mod rotation;
mod split;
mod tls;
