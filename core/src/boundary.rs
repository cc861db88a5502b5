//! Where the loop stops helping, and how a run ends.

use serde::{Deserialize, Serialize};

use crate::closed_enum::closed_enum;
use crate::outcome::OutcomeUnavailable;

closed_enum! {
    /// The five failure boundaries (article, "The explicit failure boundary"): another retry would not help.
    pub enum FailureBoundary {
        /// Nothing says which behavior is wanted: execution cannot recover a decision of the product's owner.
        MissingIntent = "missing_intent",
        /// Dependencies, data or services cannot be rebuilt, so a failure means nothing.
        IrreproducibleState = "irreproducible_state",
        /// The oracle is weak, or shares its author's mistake with the patch.
        WeakOracle = "weak_oracle",
        /// The task could be solved by weakening the controls or the evaluator.
        UnboundedAuthority = "unbounded_authority",
        /// The base moved under the evidence.
        MovingBase = "moving_base",
    }
}

/// How a whole run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// The current patch was handed in.
    Submitted,
    /// The budget was used up before that.
    BudgetSpent,
    /// A failure boundary was met, and a person has to look.
    Escalated(FailureBoundary),
    /// The environment could not answer.
    Unavailable(OutcomeUnavailable),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escalated_end_carries_the_name_of_its_boundary() {
        #[rustfmt::skip]
        let table = [
            (FailureBoundary::MissingIntent,       r#"{"escalated":"missing_intent"}"#),
            (FailureBoundary::IrreproducibleState, r#"{"escalated":"irreproducible_state"}"#),
            (FailureBoundary::WeakOracle,          r#"{"escalated":"weak_oracle"}"#),
            (FailureBoundary::UnboundedAuthority,  r#"{"escalated":"unbounded_authority"}"#),
            (FailureBoundary::MovingBase,          r#"{"escalated":"moving_base"}"#),
        ];
        assert_eq!(table.map(|row| row.0), FailureBoundary::ALL);
        for (boundary, json) in table {
            assert_eq!(serde_json::to_string(&RunEnd::Escalated(boundary)).unwrap(), json);
        }
    }
}
