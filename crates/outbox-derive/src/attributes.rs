//! The attributes `#[event(…)]` of the type and of its fields.

use proc_macro2::Span;
use syn::{
    Attribute, Data, DataStruct, DeriveInput, Error, Expr, Field, Fields, LitInt, LitStr, Member, Path, Result, Type,
    meta::ParseNestedMeta, parse::Parse, spanned::Spanned as _,
};

use crate::literal;

/// Sets a part of the event, which may come from the type's attribute or from a field, and is given once.
fn set<T>(part: &mut Option<T>, name: &str, span: Span, value: T) -> Result<()> {
    if part.is_some() {
        return Err(Error::new(span, format!("the {name} of the event is given twice: keep one")));
    }
    *part = Some(value);
    Ok(())
}

/// A field with an attribute.
pub(crate) struct Marked {
    pub(crate) member: Member,
    pub(crate) kind: Type,
}

pub(crate) enum Key {
    None,
    Field(Box<Marked>),
    Function(Expr),
}

pub(crate) enum Lane {
    Number(u16),
    Field(Box<Marked>),
}

pub(crate) enum Delay {
    Millis(u64),
    Field(Box<Marked>),
}

pub(crate) enum Payload {
    Field(Box<Marked>),
    Function(Expr),
}

#[derive(Default)]
pub(crate) struct Attributes {
    /// The path of `outbox_core`, if the type gives it.
    pub(crate) library: Option<Path>,
    pub(crate) topic: Option<LitStr>,
    pub(crate) event_type: Option<LitStr>,
    pub(crate) content_type: Option<LitStr>,
    pub(crate) key: Option<Key>,
    pub(crate) lane: Option<Lane>,
    pub(crate) delay: Option<Delay>,
    pub(crate) payload: Option<Payload>,
    /// The place of `sequenced`.
    pub(crate) sequenced: Option<Span>,
    /// The place of errors about a missing part: the attribute, or the name of the type.
    pub(crate) span: Option<Span>,
}

impl Attributes {
    pub(crate) fn read(input: &DeriveInput) -> Result<Self> {
        let mut attributes = Self::default();
        for attribute in of_event(&input.attrs) {
            attributes.span.get_or_insert(attribute.path().span());
            attribute.parse_nested_meta(|meta| attributes.of_type(&meta))?;
        }
        attributes.span.get_or_insert(input.ident.span());
        match &input.data {
            Data::Struct(DataStruct { fields, .. }) => attributes.of_fields(fields)?,
            Data::Enum(data) => no_fields(data.variants.iter().flat_map(|variant| &variant.fields))?,
            Data::Union(data) => {
                return Err(Error::new(data.union_token.span, "an event is a struct or an enum, not a union"));
            }
        }
        attributes.check_sequenced()?;
        Ok(attributes)
    }

    /// Refuses the sequenced messages that `outbox_core::Message` refuses.
    fn check_sequenced(&self) -> Result<()> {
        let Some(span) = self.sequenced else { return Ok(()) };
        if matches!(self.key, Some(Key::None)) {
            let text = "a sequence counts the messages of a key: in place of `no_key` mark the field that is the key \
                        with `#[event(key)]`, or add `key = function`";
            return Err(Error::new(span, text));
        }
        if self.delay.is_some() {
            let text = "later messages of the key would overtake one with a delay: remove `delay` or `sequenced`";
            return Err(Error::new(span, text));
        }
        Ok(())
    }

    fn of_type(&mut self, meta: &ParseNestedMeta) -> Result<()> {
        let span = meta.path.span();
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "topic" => set(&mut self.topic, "topic", span, literal::topic(value(meta, "\"orders\"")?)?),
            "type" => set(&mut self.event_type, "type", span, literal::short(value(meta, "\"order.placed.v1\"")?)?),
            "content_type" => {
                let literal = value(meta, "\"application/protobuf\"")?;
                set(&mut self.content_type, "content type", span, literal::short(literal)?)
            }
            "key" if meta.input.peek(syn::Token![=]) => {
                set(&mut self.key, "key", span, Key::Function(meta.value()?.parse()?))
            }
            "key" => Err(meta.error("write `key = function`, or mark the field that is the key with `#[event(key)]`")),
            "no_key" => set(&mut self.key, "key", span, Key::None),
            "lane" => {
                let number: LitInt = value(meta, "3")?;
                let lane = number.base10_parse::<u16>();
                let lane = lane.map_err(|_error| Error::new(number.span(), "a lane is a number from 0 to 65535"))?;
                set(&mut self.lane, "lane", span, Lane::Number(lane))
            }
            "delay" => {
                let millis = literal::delay(&value(meta, "\"30s\"")?)?;
                set(&mut self.delay, "delay", span, Delay::Millis(millis))
            }
            "encode" => set(&mut self.payload, "payload", span, Payload::Function(meta.value()?.parse()?)),
            "crate" => {
                let path: LitStr = value(meta, "\"renamed_core\"")?;
                set(&mut self.library, "crate", span, path.parse_with(Path::parse_mod_style)?)
            }
            "sequenced" => set(&mut self.sequenced, "sequence", span, span),
            _ => Err(meta.error(
                "unknown attribute: a type takes `topic`, `type`, `key`, `no_key`, `sequenced`, `lane`, `delay`, \
                 `encode`, `content_type` and `crate`",
            )),
        }
    }

    fn of_fields(&mut self, fields: &Fields) -> Result<()> {
        for (field, member) in fields.iter().zip(fields.members()) {
            for attribute in of_event(&field.attrs) {
                attribute.parse_nested_meta(|meta| self.of_field(&meta, &member, field))?;
            }
        }
        Ok(())
    }

    fn of_field(&mut self, meta: &ParseNestedMeta, member: &Member, field: &Field) -> Result<()> {
        let span = meta.path.span();
        let kind = field.ty.clone();
        let field = Box::new(Marked { member: member.clone(), kind });
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match name.as_str() {
            "key" => set(&mut self.key, "key", span, Key::Field(field)),
            "lane" => set(&mut self.lane, "lane", span, Lane::Field(field)),
            "delay" => set(&mut self.delay, "delay", span, Delay::Field(field)),
            "payload" => set(&mut self.payload, "payload", span, Payload::Field(field)),
            _ => Err(meta.error("unknown attribute: a field takes `key`, `lane`, `delay` or `payload`")),
        }
    }
}

fn of_event(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("event"))
}

fn no_fields<'a>(fields: impl Iterator<Item = &'a Field>) -> Result<()> {
    match fields.flat_map(|field| of_event(&field.attrs)).next() {
        Some(attribute) => {
            let text = "the fields of an enum differ by variant: write `#[event(key = function)]` on the enum";
            Err(Error::new(attribute.path().span(), text))
        }
        None => Ok(()),
    }
}

fn value<T: Parse>(meta: &ParseNestedMeta, example: &str) -> Result<T> {
    let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
    let parsed = meta.value().and_then(syn::parse::ParseBuffer::parse::<T>);
    parsed.map_err(|error| Error::new(error.span(), format!("write `{name} = {example}`")))
}
