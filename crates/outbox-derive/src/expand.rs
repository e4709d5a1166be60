//! The implementation of `Event` that the attributes ask for.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{DeriveInput, Error, LitStr, Member, Path, Result, Type, parse_quote, spanned::Spanned as _};

use crate::attributes::{Attributes, Delay, Key, Lane, Marked, Payload};

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let Attributes { library, topic, event_type, content_type, key, lane, delay, payload, sequenced, span } =
        Attributes::read(input)?;
    let span = span.unwrap_or_else(Span::call_site);
    let library = library.unwrap_or_else(|| parse_quote!(::outbox_core));
    let topic = required(topic, span, "the event has no topic: add `topic = \"orders\"`, where it is sent to");
    let event_type = required(event_type, span, "the event has no type: add `type = \"order.placed.v1\"`, what it is");
    let key = required(
        key,
        span,
        "which of these events keep their order? mark the field that says so with `#[event(key)]`, \
         or add `key = function`, or `no_key` if none do",
    );
    let (topic, event_type, key) = both(both(topic, event_type), key).map(|((a, b), c)| (a, b, c))?;
    let payload = self::payload(&library, payload, content_type.as_ref(), span)?;
    let content_type = content_type.map(|text| quote!(const CONTENT_TYPE: &'static str = #text;));
    let sequenced = sequenced.map(|_span| {
        quote!(
            const SEQUENCED: bool = true;
        )
    });
    let key = self::key(&library, &key);
    let lane = lane.map(self::lane);
    let delay = delay.map(self::delay);
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics #library::Event for #name #arguments #bounds {
            const TYPE: &'static str = #event_type;
            const TOPIC: &'static str = #topic;
            #content_type
            #sequenced
            fn key(&self) -> ::core::option::Option<::std::vec::Vec<u8>> { #key }
            #payload
            #lane
            #delay
        }
    })
}

fn required<T>(value: Option<T>, span: Span, text: &str) -> Result<T> {
    value.ok_or_else(|| Error::new(span, text))
}

/// Both values, or both errors: one compilation reports all.
fn both<A, B>(a: Result<A>, b: Result<B>) -> Result<(A, B)> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(mut a), Err(b)) => {
            a.combine(b);
            Err(a)
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

fn key(library: &Path, key: &Key) -> TokenStream {
    match key {
        Key::None => quote!(::core::option::Option::None),
        Key::Function(function) => {
            quote_spanned!(function.span()=> ::core::option::Option::Some(#library::derived::key_by(self, #function)))
        }
        Key::Field(field) => {
            let (span, member) = field.parts();
            if is_option(&field.kind) {
                quote_spanned!(span=> self.#member.as_ref().map(#library::derived::KeyField::to_key))
            } else {
                quote_spanned!(span=> ::core::option::Option::Some(#library::derived::KeyField::to_key(&self.#member)))
            }
        }
    }
}

fn lane(lane: Lane) -> TokenStream {
    let lane = match lane {
        Lane::Number(number) => quote!(#number),
        Lane::Field(field) => {
            let (span, member) = field.parts();
            quote_spanned!(span=> self.#member)
        }
    };
    quote!(fn lane(&self) -> u16 { #lane })
}

fn delay(delay: Delay) -> TokenStream {
    let delay = match delay {
        Delay::Millis(millis) => {
            quote!(::core::option::Option::Some(::core::time::Duration::from_millis(#millis)))
        }
        Delay::Field(field) => {
            let (span, member) = field.parts();
            if is_option(&field.kind) {
                quote_spanned!(span=> self.#member)
            } else {
                quote_spanned!(span=> ::core::option::Option::Some(self.#member))
            }
        }
    };
    quote!(fn delay(&self) -> ::core::option::Option<::core::time::Duration> { #delay })
}

fn payload(library: &Path, payload: Option<Payload>, content_type: Option<&LitStr>, span: Span) -> Result<TokenStream> {
    if payload.is_some() && content_type.is_none() {
        let text = "what are these bytes? add `content_type = \"application/protobuf\"` or what they are";
        return Err(Error::new(span, text));
    }
    let payload = match payload {
        None => quote!(#library::to_json(self)),
        Some(Payload::Function(function)) => {
            quote_spanned!(function.span()=> #library::derived::payload_by(self, #function))
        }
        Some(Payload::Field(field)) => {
            let (span, member) = field.parts();
            quote_spanned! {span=>
                ::core::result::Result::Ok(::core::convert::AsRef::<[u8]>::as_ref(&self.#member).to_vec())
            }
        }
    };
    Ok(quote! {
        fn payload(&self) -> ::core::result::Result<::std::vec::Vec<u8>, #library::BoxError> { #payload }
    })
}

impl Marked {
    /// The place of errors about its type, and its name.
    fn parts(&self) -> (Span, &Member) {
        (self.kind.span(), &self.member)
    }
}

/// Decides by the name, as macros do: they see no types.
fn is_option(kind: &Type) -> bool {
    matches!(kind, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_gives_the_path_of_the_crate_needs_no_other_name_of_it() {
        let forms: [DeriveInput; 3] = [
            parse_quote!(
                #[event(crate = "a::renamed", topic = "t", type = "t", key = f)]
                struct S;
            ),
            parse_quote!(
                #[event(crate = "a::renamed", topic = "t", type = "t")]
                struct S(#[event(key)] Option<u8>);
            ),
            parse_quote!(
                #[event(crate = "a::renamed", topic = "t", type = "t", no_key)]
                #[event(encode = f, content_type = "text/plain")]
                struct S(#[event(lane)] u16, #[event(delay)] Duration);
            ),
        ];
        for form in forms {
            let code = expand(&form).unwrap().to_string();
            assert!(code.contains("a :: renamed :: Event") && !code.contains("outbox_core"), "{code}");
        }
    }
}
