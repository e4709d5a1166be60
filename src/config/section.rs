//! The macro that declares the sections of the configuration.

/// The text of a doc comment without the blank at its start.
pub(super) const fn trimmed(doc: &'static str) -> &'static str {
    doc.split_at(1).1
}

/// The words of a choice, and what they mean.
pub(super) type Words<T, const N: usize> = [(&'static str, T); N];

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
    (read $reader:ident $path:ident Words($words:ident: $type:ty)) => {{
        let [(_, first), ..] = $words;
        $reader.choice(&$path, &$words).unwrap_or(first)
    }};
    (read $reader:ident $path:ident Count($($bounds:tt)*)) => { $reader.count(&$path) };
    (read $reader:ident $path:ident Size()) => { $reader.size(&$path) };
    (read $reader:ident $path:ident Duration()) => { $reader.duration(&$path) };
    (read $reader:ident $path:ident Retention()) => { $reader.duration(&$path) };
    (read $reader:ident $path:ident Switch()) => { $reader.text(&$path) == Some("true") };
    (read $reader:ident $path:ident File()) => { $reader.text(&$path).map(::std::path::PathBuf::from) };
    (read $reader:ident $path:ident Lanes()) => { $reader.text(&$path).and_then($crate::config::value::lanes).unwrap_or_default() };
    (read $reader:ident $path:ident Address()) => { $reader.text(&$path).and_then(|text| text.parse().ok()) };
    (read $reader:ident $path:ident $text:ident()) => { $reader.string(&$path) };
    (kind Words($words:ident: $type:ty)) => { $crate::config::value::Kind::Choice(const { &$crate::config::section::words(&$words) }) };
    (kind $kind:ident()) => { $crate::config::value::Kind::$kind };
    (kind $kind:ident($($bounds:tt)*)) => { $crate::config::value::Kind::$kind($($bounds)*) };
}

/// Keys of a section.
macro_rules! keys {
    ($pattern:literal, $($(#[doc = $help:literal])+ $name:ident: $kind:ident$(($($arg:tt)*))? $([$($only:literal),+])? = $unset:ident $sample:literal;)*) => {
        &[$($crate::config::keys::ConfigKey {
            path: concat!($pattern, ".", stringify!($name)),
            kind: $crate::config::section::field!(kind $kind($($($arg)*)?)),
            unset: $crate::config::keys::Unset::$unset($sample),
            only: &[$($($only),+)?],
            help: $crate::config::section::trimmed(concat!($($help),+)),
        }),*]
    };
}

/// Declares a section: its keys, and the struct that it fills. A key under `read` is a field that is read by its kind;
/// under `keys` it has no field; a field under `given` gets its value from `build`. A key is
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
            $($(#[doc = $help])+ pub $field: $crate::config::section::field!(type $kind($($($arg)*)?)),)*
        }

        impl $section {
            pub(super) const KEYS: &[&[$crate::config::keys::ConfigKey]] = &[
                $crate::config::section::keys!($pattern, $($keys)*),
                $crate::config::section::keys!($pattern, $($(#[doc = $help])+ $field: $kind$(($($arg)*))? $([$($only),+])? = $unset $sample;)*),
                $($crate::config::section::keys!($pattern, $($more)*),)?
            ];

            /// Reads the section of this name. The fields under `given` are given.
            pub(super) fn read(reader: &$crate::config::reader::SettingsReader, name: &str, given: ($($type,)*)) -> Self {
                let ($($given,)*) = given;
                $(let $field = {
                    let path = $crate::config::path::KeyPath::new(concat!($pattern, ".", stringify!($field)), &[name]);
                    $crate::config::section::field!(read reader path $kind($($($arg)*)?))
                };)*
                Self { $($given,)* $($field),* }
            }
        }
    };
}

pub(super) use {field, keys, section};
