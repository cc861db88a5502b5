//! What carrying out an action took: nine raw figures, kept apart, each with where it comes from.

use crate::action::Action;
use crate::closed_enum::closed_enum;
use crate::units::{Micros, Tokens};

use serde::{Deserialize, Serialize};

/// One raw figure: measured, estimated by a named method, or unavailable for a named reason. Unknown is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure<T> {
    /// Read from the instrument that counts it.
    Measured(T),
    /// Computed from something else.
    Estimated {
        /// The figure.
        value: T,
        /// How it was computed.
        method: EstimateMethod,
    },
    /// Not to be had.
    Unavailable(FigureUnavailable),
}

impl<T: Copy> Figure<T> {
    /// The figure, measured or estimated.
    ///
    /// # Errors
    /// The reason, where there is none.
    pub const fn value(self) -> Result<T, FigureUnavailable> {
        match self {
            Self::Measured(value) | Self::Estimated { value, .. } => Ok(value),
            Self::Unavailable(reason) => Err(reason),
        }
    }

    /// The method, where the figure is an estimate.
    #[must_use]
    pub const fn method(self) -> Option<EstimateMethod> {
        match self {
            Self::Estimated { method, .. } => Some(method),
            Self::Measured(_) | Self::Unavailable(_) => None,
        }
    }
}

closed_enum! {
    /// How a figure was estimated. Variants are only ever appended.
    pub enum EstimateMethod {
        /// Tokens: counted with a tokenizer of ours, which need not be the provider's.
        LocalTokenizer = "local_tokenizer",
        /// Tokens: the text's bytes over a fixed number of bytes a token.
        BytesPerToken = "bytes_per_token",
        /// Time: the difference of two recorded time stamps.
        TimeStamps = "time_stamps",
        /// Time: the sum of the recorded latencies of the calls, without what lies between them.
        CallLatencies = "call_latencies",
        /// CPU time: wall time times the processors that were granted.
        WallTimesProcessors = "wall_times_processors",
        /// CPU time: a group's counter, less what others in the group are known to have used.
        SharedCounter = "shared_counter",
    }
}

closed_enum! {
    /// Why a figure could not be had. Variants are only ever appended.
    pub enum FigureUnavailable {
        /// The recorder does not write this figure.
        NotRecorded = "not_recorded",
        /// The provider returned no count.
        ProviderSilent = "provider_silent",
        /// The stage was not reached.
        StageNotReached = "stage_not_reached",
        /// The kernel offers no counter for it here.
        NoCounter = "no_counter",
        /// The run ended before the figure was written.
        RecordLost = "record_lost",
        /// The recorded figure contradicts another one.
        Contradictory = "contradictory",
    }
}

/// The nine raw figures of one executed action (paper, "Cost and action choice"). Times are whole microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measurement {
    /// The action that was carried out.
    pub action: Action,
    /// Tokens that the repair policy's model read, repeats included.
    pub input_tokens: Figure<Tokens>,
    /// New tokens that it wrote: the paper's `N_new`.
    pub output_tokens: Figure<Tokens>,
    /// Service (wall) time of the prescribed pretest alone, elapsed time where it timed out: `T_pretest`.
    ///
    /// The repair policy's own test runs are not in it. What stands here for an action without a pretest is not
    /// charged.
    pub pretest_wall: Figure<Micros>,
    /// CPU time of public tests, the prescribed ones.
    pub public_test_cpu: Figure<Micros>,
    /// Wall time of the repair, model latency included.
    pub repair_wall: Figure<Micros>,
    /// CPU time that the repair could have used: what was granted, not what was used.
    pub available_repair_cpu: Figure<Micros>,
    /// Wall time of restoring the candidate and readying its environment.
    pub set_up_wall: Figure<Micros>,
    /// Wall time of the final grading.
    pub final_grading_wall: Figure<Micros>,
    /// Wall time of the decision that chose the action.
    pub decision_latency: Figure<Micros>,
}

impl Measurement {
    /// A measurement of which nothing is known yet, for one reason.
    #[must_use]
    pub const fn unavailable(action: Action, reason: FigureUnavailable) -> Self {
        Self {
            action,
            input_tokens: Figure::Unavailable(reason),
            output_tokens: Figure::Unavailable(reason),
            pretest_wall: Figure::Unavailable(reason),
            public_test_cpu: Figure::Unavailable(reason),
            repair_wall: Figure::Unavailable(reason),
            available_repair_cpu: Figure::Unavailable(reason),
            set_up_wall: Figure::Unavailable(reason),
            final_grading_wall: Figure::Unavailable(reason),
            decision_latency: Figure::Unavailable(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_keeps_where_it_comes_from() {
        #[rustfmt::skip]
        let cases = [ // figure                                                       value     method                              json
            (Figure::Measured(Tokens(7)),                                             Ok(7),    None,                               r#"{"measured":7}"#),
            (Figure::Estimated { value: Tokens(9), method: EstimateMethod::LocalTokenizer }, Ok(9), Some(EstimateMethod::LocalTokenizer), r#"{"estimated":{"value":9,"method":"local_tokenizer"}}"#),
            (Figure::Unavailable(FigureUnavailable::ProviderSilent),                  Err(FigureUnavailable::ProviderSilent), None, r#"{"unavailable":"provider_silent"}"#),
        ];
        for (figure, value, method, json) in cases {
            assert_eq!(figure.value().map(|tokens| tokens.0), value, "{json}");
            assert_eq!(figure.method(), method, "{json}");
            assert_eq!(serde_json::to_string(&figure).unwrap(), json);
            assert_eq!(serde_json::from_str::<Figure<Tokens>>(json).unwrap(), figure);
        }
    }
}
