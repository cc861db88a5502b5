//! How many of the 4,096 tokens each field of a state gets. Constants: they depend on no content and no label.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;
use crate::units::Tokens;

closed_enum! {
    /// The parts of an encoded state, in the order they are laid out: most stable first, so that a cached prefix
    /// survives the next decision.
    pub enum Field {
        /// The issue text.
        Issue = "issue",
        /// The public-test menu.
        Menu = "menu",
        /// The patch against the initial repository.
        Patch = "patch",
        /// Recent tool observations.
        Observations = "observations",
        /// The remaining budget.
        Budget = "budget",
        /// The fixed words between the fields.
        Template = "template",
    }
}

/// The tokens of each field. An unused share is never given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Table")] // the wire must not build a table under a version that means another
pub struct FieldShares {
    /// Which table this is; a bundle and a decision receipt name it.
    pub version: u16,
    tokens: [Tokens; Field::ALL.len()],
}

impl FieldShares {
    /// The bound on a whole encoded state (paper, "Decision state").
    pub const TOTAL: Tokens = Tokens(4_096);

    /// Version 1.
    pub const V1: Self =
        Self { version: 1, tokens: [Tokens(1_024), Tokens(320), Tokens(1_216), Tokens(1_408), Tokens(64), Tokens(64)] };

    /// The table of `version`; `None` for a version that this build does not know.
    #[must_use]
    pub const fn of_version(version: u16) -> Option<Self> {
        match version {
            1 => Some(Self::V1),
            _ => None,
        }
    }

    /// The share of one field.
    #[must_use]
    pub const fn of(&self, field: Field) -> Tokens {
        self.tokens[field as usize]
    }
}

/// What comes over the wire, before it is held against the version that it claims.
#[derive(Deserialize)]
struct Table {
    version: u16,
    tokens: [Tokens; Field::ALL.len()],
}

/// Field shares came that are not the table of their version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownShares {
    /// The version that they claim.
    pub version: u16,
}

impl fmt::Display for UnknownShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "these field shares are not version {} as this build knows it", self.version)
    }
}

impl core::error::Error for UnknownShares {}

impl TryFrom<Table> for FieldShares {
    type Error = UnknownShares;
    fn try_from(table: Table) -> Result<Self, UnknownShares> {
        match Self::of_version(table.version) {
            Some(known) if known.tokens == table.tokens => Ok(known),
            _ => Err(UnknownShares { version: table.version }),
        }
    }
}

const _: () = {
    let mut sum = 0;
    let mut field = 0;
    while field < Field::ALL.len() {
        sum += FieldShares::V1.tokens[field].0;
        field += 1;
    }
    assert!(sum == FieldShares::TOTAL.0, "the shares of version 1 must fill the bound exactly");
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_this_table() {
        #[rustfmt::skip]
        let table = [
            (Field::Issue, "issue", 1_024), (Field::Menu, "menu", 320), (Field::Patch, "patch", 1_216),
            (Field::Observations, "observations", 1_408), (Field::Budget, "budget", 64), (Field::Template, "template", 64),
        ];
        assert_eq!(table.map(|row| row.0), Field::ALL);
        for (field, name, tokens) in table {
            assert_eq!(field.name(), name);
            assert_eq!(FieldShares::V1.of(field), Tokens(tokens), "{name}");
        }
        assert_eq!(FieldShares::V1.version, 1);
        assert_eq!(FieldShares::of_version(1), Some(FieldShares::V1));
        assert_eq!(FieldShares::of_version(2), None);
    }

    #[test]
    fn the_wire_builds_no_table_but_that_of_its_version() {
        let text = serde_json::to_string(&FieldShares::V1).unwrap();
        assert_eq!(serde_json::from_str::<FieldShares>(&text).unwrap(), FieldShares::V1);
        for (from, to) in [("1024", "1025"), ("\"version\":1", "\"version\":2")] {
            assert!(text.contains(from));
            assert!(serde_json::from_str::<FieldShares>(&text.replace(from, to)).is_err(), "{to}");
        }
    }
}
