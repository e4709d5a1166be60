//! The macro that declares the sections of the configuration.

/// The text of a doc comment without the blank at its start.
pub(crate) const fn trimmed(doc: &'static str) -> &'static str {
    doc.split_at(1).1
}

/// The words of a choice, and what they mean.
#[doc(hidden)]
pub type Words<T, const N: usize> = [(&'static str, T); N];

#[expect(clippy::indexing_slicing, reason = "it runs in the compiler")]
pub(super) const fn words<T: Copy, const N: usize>(choices: &Words<T, N>) -> [&'static str; N] {
    let mut words = [""; N];
    let mut index = 0;
    while index < N {
        words[index] = choices[index].0;
        index += 1;
    }
    words
}

/// The values that were given, by the paths of their keys.
#[doc(hidden)]
pub trait Given {
    /// Returns the text of a value that was given; `None`: its default counts.
    fn given(&self, path: &str) -> Option<&str>;
}

/// Defaults alone.
pub(super) struct Nothing;

impl Given for Nothing {
    fn given(&self, _path: &str) -> Option<&str> {
        None
    }
}

/// Returns the path of a key in the section of this name.
pub(crate) fn path(pattern: &str, field: &str, name: &str) -> String {
    format!("{}.{field}", pattern.replacen('*', name, 1))
}

/// The type of a field that is read by its kind, its reading, and its kind.
macro_rules! field {
    (type Words($words:ident: $type:ty)) => { $type };
    (type Count($($bounds:tt)*)) => { usize };
    (type Size()) => { usize };
    (type Duration()) => { ::std::time::Duration };
    (type Retention()) => { ::std::time::Duration };
    (type Switch()) => { bool };
    (type File()) => { Option<::std::path::PathBuf> };
    (type Lanes()) => { Vec<u16> };
    (type Address()) => { Option<::std::net::SocketAddr> };
    (type $text:ident()) => { String };
    (read $text:ident Words($words:ident: $type:ty)) => {{
        let [(_, first), ..] = $words;
        $words.iter().find(|(word, _)| $text == Some(*word)).map_or(first, |(_, meaning)| *meaning)
    }};
    (read $text:ident Count($($bounds:tt)*)) => { $text.and_then($crate::settings::value::count).unwrap_or_default() };
    (read $text:ident Size()) => { $text.and_then($crate::settings::value::size).unwrap_or_default() };
    (read $text:ident Duration()) => { $text.and_then($crate::settings::value::duration).unwrap_or_default() };
    (read $text:ident Retention()) => { $text.and_then($crate::settings::value::retention).unwrap_or_default() };
    (read $text:ident Switch()) => { $text == Some("true") };
    (read $text:ident File()) => { $text.map(::std::path::PathBuf::from) };
    (read $text:ident Lanes()) => { $text.and_then($crate::settings::value::lanes).unwrap_or_default() };
    (read $text:ident Address()) => { $text.and_then(|text| text.parse().ok()) };
    (read $text:ident $kind:ident()) => { $text.unwrap_or_default().to_owned() };
    (kind Words($words:ident: $type:ty)) => { $crate::settings::value::ValueKind::Choice(const { &$crate::settings::section::words(&$words) }) };
    (kind $kind:ident()) => { $crate::settings::value::ValueKind::$kind };
    (kind $kind:ident($($bounds:tt)*)) => { $crate::settings::value::ValueKind::$kind($($bounds)*) };
}

/// Keys of a section.
macro_rules! keys {
    ($pattern:literal, $($(#[doc = $help:literal])+ $name:ident: $kind:ident$(($($arg:tt)*))? $([$($only:literal),+])? = $unset:ident $sample:literal;)*) => {
        &[$($crate::settings::keys::ConfigKey {
            path: concat!($pattern, ".", stringify!($name)),
            kind: $crate::settings::section::field!(kind $kind($($($arg)*)?)),
            unset: $crate::settings::keys::Unset::$unset($sample),
            only: &[$($($only),+)?],
            help: $crate::settings::section::trimmed(concat!($($help),+)),
        }),*]
    };
}

/// Declares a section: its keys, and the struct that it fills. A key under `read` is a field that is read by its kind;
/// under `keys` it has no field; a field under `given` gets its value from the caller of `read`. A key is
///
/// ```text
/// /// Its meaning, in the documentation and in the commented example, too.
/// name: Kind(arguments) ["type of sink that it belongs to"] = Default|Optional|Required "value or example";
/// ```
macro_rules! section {
    (
        $(#[doc = $about:literal])+ $section:ident in $pattern:literal;
        keys { $($keys:tt)* }
        given { $($(#[doc = $meaning:literal])+ $given:ident: $type:ty;)* }
        read { $($(#[doc = $help:literal])+ $field:ident: $kind:ident$(($($arg:tt)*))? $([$($only:literal),+])? = $unset:ident $sample:literal;)* }
        $(keys { $($more:tt)* })?
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone)]
        #[non_exhaustive]
        pub struct $section {
            $($(#[doc = $meaning])+ pub $given: $type,)*
            $($(#[doc = $help])+ pub $field: $crate::settings::section::field!(type $kind($($($arg)*)?)),)*
        }

        impl $section {
            #[doc(hidden)]
            pub const KEYS: &[&[$crate::settings::keys::ConfigKey]] = &[
                $crate::settings::section::keys!($pattern, $($keys)*),
                $crate::settings::section::keys!($pattern, $($(#[doc = $help])+ $field: $kind$(($($arg)*))? $([$($only),+])? = $unset $sample;)*),
                $($crate::settings::section::keys!($pattern, $($more)*),)?
            ];

            /// Reads the section of this name. The fields under `given` are given.
            #[doc(hidden)]
            pub fn read(values: &(impl $crate::settings::section::Given + ?Sized), name: &str, given: ($($type,)*)) -> Self {
                let ($($given,)*) = given;
                $(let $field = {
                    let path = $crate::settings::section::path($pattern, stringify!($field), name);
                    let text = values.given(&path).or($crate::settings::keys::Unset::$unset($sample).default());
                    $crate::settings::section::field!(read text $kind($($($arg)*)?))
                };)*
                Self { $($given,)* $($field),* }
            }
        }
    };
}

pub(crate) use {field, keys, section};
