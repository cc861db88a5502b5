//! The lambda gate: which price of cost a controller is served with, chosen on development data and then frozen.
//!
//! Everything is compared exactly: success in half outcomes over the same states, cost in [`CostTicks`] over the same
//! states, so that a sum orders as a mean does. No float decides.

use core::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::action::{Action, ActionSet, PerAction};
use crate::closed_enum::closed_enum;
use crate::cost::{CostTicks, PairCost};
use crate::digest::Digest;
use crate::estimate::Estimates;
use crate::outcome::{HalfOutcomes, StateOutcomes};
use crate::receipt::{Backend, Precision};
use crate::rule::select;
use crate::success_rate::SuccessRate;
use crate::units::Lambda;
use crate::wire::Version;

/// The fixed grid (paper, "Cost and action choice"), in ascending order.
pub const LAMBDA_GRID: [f32; 5] = [0.0, 0.02, 0.05, 0.1, 0.2];

/// How far below the bar a row may lie, inclusive, in percentage points (same place).
pub const TOLERANCE_POINTS: u8 = 2;

/// One development state: what the controller said of it, and what each action really did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DevelopmentState {
    /// The actions that its menu leaves.
    pub available: ActionSet,
    /// What the controller estimates, in the precision that will serve.
    pub estimates: Estimates,
    /// What each action did; `None` where that is masked.
    pub outcomes: StateOutcomes,
    /// What each action cost; `None` where that is masked, on its own.
    pub costs: PerAction<Option<PairCost>>,
}

/// What one way of choosing did over all development states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Half outcomes that ended solved, two at most a state.
    pub half_outcomes: u64,
    /// Sum of the costs, both seeds of every state: the mean is this over twice the states.
    pub cost: CostTicks,
    /// States whose chosen action has no judged outcome. One of them makes the row ineligible.
    pub unjudged: u32,
    /// States on which there was no action to choose. One of them makes the row ineligible.
    pub without_action: u32,
    /// States whose chosen action has no cost. One of them leaves the row without a mean over the same states.
    pub uncosted: u32,
    /// States whose chosen action has a cost with an estimated term.
    pub estimated_costs: u32,
}

impl Tally {
    fn add(&mut self, state: &DevelopmentState, chosen: Option<Action>) {
        let Some(action) = chosen else {
            self.without_action += 1;
            return;
        };
        match state.outcomes.of(action) {
            None => self.unjudged += 1,
            Some(halves) => self.half_outcomes += u64::from(halves.get()),
        }
        // `submit` costs nothing by definition, recorded or not.
        let cost = if action.is_terminal() { Some(PairCost::ZERO) } else { state.costs[action] };
        match cost {
            None => self.uncosted += 1,
            Some(cost) => {
                self.cost.0 = self.cost.0.saturating_add(cost.sum.0);
                self.estimated_costs += u32::from(cost.estimated);
            }
        }
    }

    /// Whether every chosen outcome is judged.
    #[must_use]
    pub const fn is_eligible(&self) -> bool {
        self.unjudged == 0 && self.without_action == 0
    }

    /// Whether every chosen action has a cost, so that rows can be ordered by it.
    #[must_use]
    pub const fn is_costed(&self) -> bool {
        self.uncosted == 0
    }
}

/// Where the bar comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BarSource {
    /// The best eligible fixed policy, which plays this action.
    FixedPolicy(Action),
    /// The frozen reference that was supplied.
    FrozenReference,
}

/// What a row is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Where it comes from.
    pub source: BarSource,
    /// Its success.
    pub success: SuccessRate,
}

closed_enum! {
    /// Why the lambda gate was not met. Variants are only ever appended.
    pub enum GateShortfall {
        /// There are no development states.
        NoStates = "no_states",
        /// No fixed policy is eligible, and no reference was supplied.
        NoBar = "no_bar",
        /// Every row has an unjudged chosen outcome.
        NoEligibleRow = "no_eligible_row",
        /// Rows are eligible, and none lies within the tolerance of the bar.
        BelowBar = "below_bar",
        /// Rows lie within the tolerance, and none has a cost on every state, so none can be called the lowest.
        NoCostedRow = "no_costed_row",
    }
}

/// What the lambda gate answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum GateAnswer {
    /// This row of the grid is served, counted from 0.
    Met {
        /// The row.
        row: u8,
    },
    /// Lambda stays 0.
    NotMet(GateShortfall),
}

/// What the record says of itself, in every copy: it is not a risk guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NoGuarantee;

impl NoGuarantee {
    /// The sentence.
    pub const NOTE: &'static str =
        "Chosen on development data. This is no distribution-free guarantee of risk on any other data.";
}

impl Serialize for NoGuarantee {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::NOTE)
    }
}

impl<'de> Deserialize<'de> for NoGuarantee {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Note;
        impl Visitor<'_> for Note {
            type Value = NoGuarantee;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the note that this is no guarantee")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<NoGuarantee, E> {
                if text == NoGuarantee::NOTE { Ok(NoGuarantee) } else { Err(E::custom("the note was changed")) }
            }
        }
        deserializer.deserialize_str(Note)
    }
}

/// What the gate's rows were computed with and on. Frozen with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateContext {
    /// Digest of what turns a state into estimates: field shares, tokenizer and network, and a comparator's transition
    /// kernel with them. It is not the bundle's, whose record holds this gate.
    pub controller: Digest,
    /// Digest of the development states.
    pub development: Digest,
    /// The code that computed the estimates, and will serve.
    pub backend: Backend,
    /// The precision that computed them, and will serve.
    pub precision: Precision,
}

/// The frozen record of one lambda gate: rows, bar, answer. What it answers follows from its rows, and is recomputed
/// whenever it comes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawGate", into = "RawGate")]
pub struct LambdaGate {
    context: GateContext,
    tallies: GateTallies,
    bar: Option<Bar>,
    answer: GateAnswer,
}

/// The counts that an answer follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateTallies {
    /// How many development states there were.
    pub states: u32,
    /// The controller, one row a lambda of [`LAMBDA_GRID`].
    pub rows: [Tally; LAMBDA_GRID.len()],
    /// The fixed policies: each plays its one action, and `continue` where that is unavailable.
    pub fixed: PerAction<Tally>,
    /// The frozen reference, where one was supplied.
    pub reference: Option<SuccessRate>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGate {
    version: Version<1>,
    context: GateContext,
    grid: [Lambda; LAMBDA_GRID.len()],
    tallies: GateTallies,
    bar: Option<Bar>,
    lambda: Lambda,
    gate_met: bool,
    answer: GateAnswer,
    note: NoGuarantee,
}

/// A lambda gate's record does not follow from its own rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateError {
    /// There are more development states than are counted.
    TooManyStates,
    /// A tally has more than its states allow.
    Tally,
    /// The grid is another one.
    Grid,
    /// The bar does not follow.
    Bar,
    /// The answer does not follow.
    Answer,
    /// The lambda is not the answer's.
    Lambda,
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooManyStates => "at most 2^32 - 1 development states are counted",
            Self::Tally => "a row of the lambda gate counts more than its states allow",
            Self::Grid => "the lambda gate's grid is not {0, 0.02, 0.05, 0.1, 0.2}",
            Self::Bar => "the bar does not follow from the lambda gate's rows",
            Self::Answer => "the answer does not follow from the lambda gate's rows",
            Self::Lambda => "the lambda is not that of the lambda gate's answer",
        })
    }
}

impl core::error::Error for GateError {}

/// The grid, as the type that the rule takes.
fn grid() -> [Lambda; LAMBDA_GRID.len()] {
    // The constants are legal, so the fallback is not reached.
    LAMBDA_GRID.map(|lambda| Lambda::new(lambda).unwrap_or(Lambda::ZERO))
}

impl GateTallies {
    /// Plays every row and every fixed policy over all states.
    ///
    /// # Errors
    /// [`GateError::TooManyStates`] past 2^32 - 1 of them.
    pub fn count(states: &[DevelopmentState], reference: Option<SuccessRate>) -> Result<Self, GateError> {
        let count = u32::try_from(states.len()).map_err(|_| GateError::TooManyStates)?;
        let mut tallies = Self {
            states: count,
            rows: [Tally::default(); LAMBDA_GRID.len()],
            fixed: PerAction([Tally::default(); Action::COUNT]),
            reference,
        };
        for state in states {
            for (row, lambda) in tallies.rows.iter_mut().zip(grid()) {
                row.add(state, select(&state.estimates, state.available, lambda).map(|choice| choice.action));
            }
            for action in Action::ALL {
                let played = [action, Action::Continue].into_iter().find(|&it| state.available.contains(it));
                tallies.fixed[action].add(state, played);
            }
        }
        Ok(tallies)
    }

    /// The success of one tally; `None` unless it is eligible and there are states.
    fn success(&self, tally: &Tally) -> Option<SuccessRate> {
        if tally.is_eligible() { SuccessRate::new(tally.half_outcomes, self.states).ok() } else { None }
    }

    /// The best eligible fixed policy, the earlier action at a tie; or the frozen reference, if that is higher.
    ///
    /// Cost plays no part: a fixed policy whose cost is not known still shows what success can be had.
    #[must_use]
    pub fn bar(&self) -> Option<Bar> {
        let fixed = self.fixed.iter().filter_map(|(action, tally)| {
            Some(Bar { source: BarSource::FixedPolicy(action), success: self.success(tally)? })
        });
        let reference = self.reference.map(|success| Bar { source: BarSource::FrozenReference, success });
        fixed.chain(reference).reduce(|best, next| if next.success.exceeds(best.success) { next } else { best })
    }

    /// The row that is served, or why none is: of the rows within the tolerance of the bar the one with the lowest
    /// cost; at a tie the one with the higher success, then the smaller lambda.
    #[must_use]
    pub fn answer(&self) -> GateAnswer {
        if self.states == 0 {
            return GateAnswer::NotMet(GateShortfall::NoStates);
        }
        let Some(bar) = self.bar() else {
            return GateAnswer::NotMet(GateShortfall::NoBar);
        };
        let mut shortfall = GateShortfall::NoEligibleRow;
        let mut best: Option<(u8, &Tally)> = None;
        for (row, tally) in (0..).zip(&self.rows) {
            let Some(success) = self.success(tally) else { continue };
            if !success.is_within(TOLERANCE_POINTS, bar.success) {
                shortfall = shortfall.max(GateShortfall::BelowBar);
            } else if !tally.is_costed() {
                shortfall = shortfall.max(GateShortfall::NoCostedRow);
            } else if best.is_none_or(|(_, held)| {
                (tally.cost, held.half_outcomes) < (held.cost, tally.half_outcomes) // lower cost, then higher success
            }) {
                best = Some((row, tally));
            }
        }
        best.map_or(GateAnswer::NotMet(shortfall), |(row, _)| GateAnswer::Met { row })
    }

    /// Whether no count is beyond what the states allow.
    fn is_possible(&self) -> bool {
        let per_state = u64::from(HalfOutcomes::PER_STATE);
        self.rows.iter().chain(&self.fixed.0).all(|tally| {
            let chosen_on = self.states.checked_sub(tally.without_action);
            let judged = chosen_on.and_then(|states| states.checked_sub(tally.unjudged));
            let costed = chosen_on.and_then(|states| states.checked_sub(tally.uncosted));
            judged.is_some_and(|judged| tally.half_outcomes <= per_state * u64::from(judged))
                && costed.is_some_and(|costed| tally.estimated_costs <= costed)
        })
    }
}

impl LambdaGate {
    /// Chooses lambda for one controller on development data.
    ///
    /// # Errors
    /// [`GateError::TooManyStates`] past 2^32 - 1 states.
    pub fn evaluate(
        context: GateContext,
        states: &[DevelopmentState],
        reference: Option<SuccessRate>,
    ) -> Result<Self, GateError> {
        GateTallies::count(states, reference).map(|tallies| Self::from_tallies(context, &tallies))
    }

    fn from_tallies(context: GateContext, tallies: &GateTallies) -> Self {
        Self { context, bar: tallies.bar(), answer: tallies.answer(), tallies: *tallies }
    }

    /// What the rows were computed with and on.
    #[must_use]
    pub const fn context(&self) -> &GateContext {
        &self.context
    }

    /// The counts.
    #[must_use]
    pub const fn tallies(&self) -> &GateTallies {
        &self.tallies
    }

    /// What the rows were held against; `None` where there was nothing.
    #[must_use]
    pub const fn bar(&self) -> Option<Bar> {
        self.bar
    }

    /// The answer, with the reason where it is no.
    #[must_use]
    pub const fn answer(&self) -> GateAnswer {
        self.answer
    }

    /// Whether an operating point satisfied the tolerance.
    #[must_use]
    pub const fn gate_met(&self) -> bool {
        matches!(self.answer, GateAnswer::Met { .. })
    }

    /// The lambda that is served: that of the winning row, else 0.
    #[must_use]
    pub fn lambda(&self) -> Lambda {
        match self.answer {
            GateAnswer::Met { row } => grid().get(usize::from(row)).copied().unwrap_or(Lambda::ZERO),
            GateAnswer::NotMet(_) => Lambda::ZERO,
        }
    }
}

impl TryFrom<RawGate> for LambdaGate {
    type Error = GateError;
    fn try_from(raw: RawGate) -> Result<Self, GateError> {
        let gate = Self::from_tallies(raw.context, &raw.tallies);
        if raw.grid != grid() {
            Err(GateError::Grid)
        } else if !gate.tallies.is_possible() {
            Err(GateError::Tally)
        } else if raw.bar != gate.bar {
            Err(GateError::Bar)
        } else if raw.answer != gate.answer || raw.gate_met != gate.gate_met() {
            Err(GateError::Answer)
        } else if raw.lambda != gate.lambda() {
            Err(GateError::Lambda)
        } else {
            Ok(gate)
        }
    }
}

impl From<LambdaGate> for RawGate {
    fn from(gate: LambdaGate) -> Self {
        Self {
            version: Version,
            grid: grid(),
            lambda: gate.lambda(),
            gate_met: gate.gate_met(),
            context: gate.context,
            tallies: gate.tallies,
            bar: gate.bar,
            answer: gate.answer,
            note: NoGuarantee,
        }
    }
}

#[cfg(test)]
#[path = "lambda_gate_tests.rs"]
mod tests;
