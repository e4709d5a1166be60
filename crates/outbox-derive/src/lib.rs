//! The derive macro of `mysql-outbox-core`, which re-exports and documents it as `outbox_core::Event`.

mod attributes;
mod expand;
mod literal;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements the trait `Event` for a struct or an enum.
///
/// Of the type:
///
/// | `#[event(…)]` | |
/// |---|---|
/// | `topic = "orders"` | required; the topic that it is sent to |
/// | `type = "order.placed.v1"` | required; the kind of event |
/// | `key = function` | the key by a function of `&Self` that returns an `Into<Vec<u8>>` |
/// | `no_key` | no key: messages of this event are in no order |
/// | `sequenced` | each event gets the next number of its key; it takes no delay |
/// | `lane = 3` | the lane, 0 by default |
/// | `delay = "30s"` | published only after this time has passed (`ms`, `s`, `m`, `h`, `d`), at most 100 years |
/// | `encode = function` | the payload by a function of `&Self` that returns `Vec<u8>` or `Result<Vec<u8>, E>`; JSON by default |
/// | `crate = "renamed_core"` | the path of `outbox_core`, for a crate that depends on it under another name or only re-exports it |
/// | `content_type = "…"` | its media type; needed beside `encode` and `#[event(payload)]` |
///
/// Of one field each:
///
/// | `#[event(…)]` | |
/// |---|---|
/// | `key` | its `Display` is the key; `None` of an `Option` is no key |
/// | `lane` | a `u16`, the lane |
/// | `delay` | a `Duration`, or an `Option` of one |
/// | `payload` | its bytes (`AsRef<[u8]>`) are the payload |
///
/// A type declares how its key is made, or that it has none: a forgotten key would lose the order.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
