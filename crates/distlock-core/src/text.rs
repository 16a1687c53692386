//! Values that travel as text: what their types have in common.

/// The way of a value through a `String`, which serde takes: parsed by its `FromStr`, printed by its
/// `Display`.
macro_rules! through_string {
    ($T:ty) => {
        impl TryFrom<String> for $T {
            type Error = crate::Error;
            fn try_from(text: String) -> Result<Self, crate::Error> {
                text.parse()
            }
        }
        impl From<$T> for String {
            fn from(value: $T) -> String {
                value.to_string()
            }
        }
    };
}

/// Printing and parsing of a value over an `Arc<str>` that its constructor has checked.
macro_rules! checked_text {
    ($T:ty, $new:ident) => {
        impl std::fmt::Display for $T {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl std::str::FromStr for $T {
            type Err = crate::Error;
            fn from_str(text: &str) -> Result<Self, crate::Error> {
                Self::$new(text)
            }
        }
        crate::text::through_string!($T);
    };
}

pub(crate) use {checked_text, through_string};
