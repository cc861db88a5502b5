//! Two macros for closed vocabularies: an enum whose variants have names and an order, and a set of its members.

/// An enum without fields, with `ALL`, `COUNT`, `name`, `from_name`, `index` and `Display`.
///
/// The name is what text formats carry too; the wire carries the position, so variants are only ever appended.
macro_rules! closed_enum {
    ($(#[$doc:meta])* pub enum $Name:ident { $($(#[$variant_doc:meta])* $Variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $Name { $($(#[$variant_doc])* #[serde(rename = $name)] $Variant,)+ }

        impl $Name {
            /// Every member, in declaration order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// How many members there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in files, tables and messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$Variant => $name,)+ }
            }

            /// The member of that name; `None` if there is none.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|member| member.name() == name)
            }

            /// The place in [`Self::ALL`].
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }
        }

        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

/// A set of the members of a [`closed_enum`]: bit `i` stands for `ALL[i]`. The wire builds no set with another bit.
macro_rules! closed_set {
    ($(#[$doc:meta])* pub struct $Set:ident($Bits:ty) of $Member:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "u16", into = "u16")]
        pub struct $Set($Bits);

        impl $Set {
            /// No member.
            pub const EMPTY: Self = Self(0);

            /// This set and `member`.
            #[must_use]
            pub const fn with(self, member: $Member) -> Self {
                Self(self.0 | 1 << member.index())
            }

            /// Whether `member` belongs.
            #[must_use]
            pub const fn contains(self, member: $Member) -> bool {
                self.0 & 1 << member.index() != 0
            }

            /// Whether there is no member.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The members of this set that `other` lacks.
            #[must_use]
            pub const fn difference(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// The members, in order.
            pub fn iter(self) -> impl Iterator<Item = $Member> {
                $Member::ALL.into_iter().filter(move |&member| self.contains(member))
            }
        }

        impl FromIterator<$Member> for $Set {
            fn from_iter<I: IntoIterator<Item = $Member>>(members: I) -> Self {
                members.into_iter().fold(Self::EMPTY, Self::with)
            }
        }

        impl core::fmt::Debug for $Set {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_set().entries(self.iter()).finish()
            }
        }

        /// The names, with commas between.
        impl core::fmt::Display for $Set {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.iter().enumerate().try_for_each(|(place, member)| {
                    if place > 0 {
                        f.write_str(", ")?;
                    }
                    f.write_str(member.name())
                })
            }
        }

        impl From<$Set> for u16 {
            fn from(set: $Set) -> Self {
                Self::from(set.0)
            }
        }

        impl TryFrom<u16> for $Set {
            type Error = crate::closed_enum::UnknownBit;
            fn try_from(bits: u16) -> Result<Self, crate::closed_enum::UnknownBit> {
                let unknown = crate::closed_enum::UnknownBit { set: stringify!($Set), bits };
                match <$Bits>::try_from(bits) {
                    Ok(legal) if bits >> $Member::COUNT == 0 => Ok(Self(legal)),
                    _ => Err(unknown),
                }
            }
        }
    };
}

pub(crate) use {closed_enum, closed_set};

/// A set came with a bit that stands for no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownBit {
    /// The set's type.
    pub set: &'static str,
    /// What came.
    pub bits: u16,
}

impl core::fmt::Display for UnknownBit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} {:#b} has a bit that stands for no member", self.set, self.bits)
    }
}

impl core::error::Error for UnknownBit {}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    closed_enum! {
        /// Three members.
        pub enum Letter {
            /// First.
            Alpha = "alpha",
            /// Second.
            BetaGamma = "beta_gamma",
            /// Third.
            Delta = "delta",
        }
    }

    closed_set! {
        /// Some of three.
        pub struct Letters(u8) of Letter
    }

    #[test]
    fn order_names_and_wire_are_one_table() {
        assert_eq!(Letter::COUNT, 3);
        for (index, letter) in Letter::ALL.into_iter().enumerate() {
            assert_eq!(letter.index(), index);
            assert_eq!(Letter::from_name(letter.name()), Some(letter));
            assert_eq!(serde_json::to_value(letter).unwrap(), letter.name());
            assert_eq!(postcard::to_slice(&letter, &mut [0; 4]).unwrap(), [u8::try_from(index).unwrap()]);
        }
        assert!(postcard::from_bytes::<Letter>(&[3]).is_err());
        assert_eq!(Letter::from_name("Alpha"), None);
    }

    #[test]
    fn a_set_is_its_members_and_refuses_other_bits() {
        for bits in 0..u16::from(u8::MAX) * 3 {
            match Letters::try_from(bits) {
                Ok(set) => {
                    assert!(bits < 8);
                    assert_eq!(set.iter().collect::<Letters>(), set);
                    assert_eq!(u16::from(set), bits);
                    assert!(set.difference(set).is_empty());
                }
                Err(error) => assert!(bits >= 8 && error.bits == bits),
            }
        }
        let two = Letters::EMPTY.with(Letter::Delta).with(Letter::Alpha);
        assert_eq!(two.to_string(), "alpha, delta");
        assert_eq!(std::format!("{two:?}"), "{Alpha, Delta}");
    }
}
