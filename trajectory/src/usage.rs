//! What the recorded run had used by the decision point. None of it is part of the state; the budget is.

use tack_core::{CountTokens, EstimateMethod, Figure, FigureUnavailable, Micros, Tokens};

/// Tokens, calls, money and time up to the decision point. `None` where the recording does not say: never zero.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Usage {
    /// Replies of the model.
    pub replies: u32,
    /// Tool calls that the replies made.
    pub tool_calls: u32,
    /// Input tokens, cached ones included; known if every reply has its count.
    pub input_tokens: Option<u64>,
    /// Input tokens that came from the provider's cache; known if every reply has its count.
    pub cached_input_tokens: Option<u64>,
    /// Output tokens of the replies that have a count.
    pub recorded_output_tokens: u64,
    /// The texts of the replies that have none, oldest first.
    pub uncounted_replies: Vec<Vec<u8>>,
    /// Replies that have neither a count nor a text: they were charged, and nobody can tell how much.
    pub lost_replies: u32,
    /// Money in US dollars; known if every reply has its cost, and the sum is not zero beside real tokens.
    pub cost_usd: Option<f64>,
    /// From the first recorded time to the last one.
    pub wall: Option<Micros>,
}

/// Output tokens, and where the figure comes from. [`Figure::from`] says it in the words of `tack-core`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputTokens {
    /// The provider counted every reply.
    Recorded(u64),
    /// Some replies were counted here, by a tokenizer that need not be the provider's.
    Estimated {
        /// The sum of what the provider counted and what was counted here.
        tokens: u64,
        /// How many replies were counted here.
        replies_counted_here: u32,
    },
    /// Some replies were charged, and neither their count nor their text was kept.
    Unavailable {
        /// How many.
        lost_replies: u32,
    },
}

impl Usage {
    /// The output tokens by the decision point; replies without a count are counted by `counter`.
    #[must_use]
    pub fn output_tokens(&self, counter: &dyn CountTokens) -> OutputTokens {
        if self.lost_replies > 0 {
            return OutputTokens::Unavailable { lost_replies: self.lost_replies };
        }
        if self.uncounted_replies.is_empty() {
            return OutputTokens::Recorded(self.recorded_output_tokens);
        }
        let counted = self.uncounted_replies.iter().map(|reply| u64::from(counter.count_tokens(reply).0));
        OutputTokens::Estimated {
            tokens: counted.fold(self.recorded_output_tokens, u64::saturating_add),
            replies_counted_here: u32::try_from(self.uncounted_replies.len()).unwrap_or(u32::MAX),
        }
    }
}

impl From<OutputTokens> for Figure<Tokens> {
    fn from(tokens: OutputTokens) -> Self {
        // No run writes four billion tokens: such a sum contradicts whatever it was added up from.
        let fits = |tokens: u64| u32::try_from(tokens).map(Tokens).map_err(|_| FigureUnavailable::Contradictory);
        match tokens {
            OutputTokens::Recorded(tokens) => fits(tokens).map_or_else(Self::Unavailable, Self::Measured),
            OutputTokens::Estimated { tokens, .. } => fits(tokens).map_or_else(Self::Unavailable, |value| {
                Self::Estimated { value, method: EstimateMethod::LocalTokenizer }
            }),
            OutputTokens::Unavailable { .. } => Self::Unavailable(FigureUnavailable::RecordLost),
        }
    }
}

/// What the recorder wrote about its whole run, beyond the decision point too. Never part of a state.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RunTotals {
    /// Calls of the model.
    pub model_calls: Option<u64>,
    /// Input tokens.
    pub input_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// Money in US dollars; `None` also where it is zero beside calls that were made: a price that nobody knew.
    pub cost_usd: Option<f64>,
}

impl RunTotals {
    /// A recorded zero is no figure where calls were made: replayed and local runs write it.
    pub(crate) fn without_empty_figures(mut self) -> Self {
        let is_used = [self.model_calls, self.input_tokens, self.output_tokens].iter().flatten().any(|&n| n > 0);
        if is_used {
            self.cost_usd = self.cost_usd.filter(|&cost| cost > 0.0);
            self.input_tokens = self.input_tokens.filter(|&tokens| tokens > 0);
            self.output_tokens = self.output_tokens.filter(|&tokens| tokens > 0);
        }
        self
    }
}

/// One reply, as a reader found it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) input_tokens: Option<u64>,
    pub(crate) cached_input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
    pub(crate) cost_usd: Option<f64>,
    /// What the model wrote, where it was recorded.
    pub(crate) text: Option<Vec<u8>>,
}

/// Adds up the replies of a prefix of a recording. Where the recorder kept running `sums`, they stand for what the
/// replies say of themselves.
pub(crate) fn add_up<'r>(replies: impl Iterator<Item = &'r Reply>, sums: Option<&Reply>) -> Usage {
    let mut usage =
        Usage { input_tokens: Some(0), cached_input_tokens: Some(0), cost_usd: Some(0.0), ..Usage::default() };
    for reply in replies {
        usage.replies += 1;
        let add = |sum: Option<u64>, more: Option<u64>| Some(sum?.saturating_add(more?));
        usage.input_tokens = add(usage.input_tokens, reply.input_tokens);
        usage.cached_input_tokens = add(usage.cached_input_tokens, reply.cached_input_tokens);
        usage.cost_usd = usage.cost_usd.zip(reply.cost_usd).map(|(sum, more)| sum + more);
        match (reply.output_tokens, &reply.text) {
            (Some(tokens), _) => usage.recorded_output_tokens = usage.recorded_output_tokens.saturating_add(tokens),
            (None, Some(text)) => usage.uncounted_replies.push(text.clone()),
            (None, None) => usage.lost_replies += 1,
        }
    }
    if usage.replies == 0 {
        return Usage::default();
    }
    if let Some(sums) = sums {
        usage.input_tokens = sums.input_tokens;
        usage.cached_input_tokens = sums.cached_input_tokens;
        usage.cost_usd = sums.cost_usd;
        if let Some(tokens) = sums.output_tokens {
            usage.recorded_output_tokens = tokens;
            usage.uncounted_replies.clear();
            usage.lost_replies = 0;
        }
    }
    // A run on a local or a replayed model writes 0: its price is unknown.
    usage.cost_usd = usage.cost_usd.filter(|&cost| cost > 0.0);
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes;
    impl CountTokens for Bytes {
        fn count_tokens(&self, text: &[u8]) -> Tokens {
            Tokens(u32::try_from(text.len()).unwrap())
        }
    }

    fn reply(output_tokens: Option<u64>, text: Option<&str>, cost_usd: Option<f64>) -> Reply {
        Reply { output_tokens, text: text.map(|it| it.as_bytes().to_vec()), cost_usd, ..Reply::default() }
    }

    /// Name, replies, output tokens, money.
    type Case<'a> = (&'a str, Vec<&'a Reply>, Figure<Tokens>, Option<f64>);

    #[test]
    fn unknown_is_not_zero_and_counted_here_is_marked() {
        let full = reply(Some(10), Some("abc"), Some(0.5));
        let uncounted = reply(None, Some("abcd"), None);
        let lost = reply(None, None, None);
        let free = reply(Some(7), None, Some(0.0));
        let huge = reply(Some(1 << 40), None, Some(0.5));
        let measured = |tokens| Figure::Measured(Tokens(tokens));
        let estimated = |tokens| Figure::Estimated { value: Tokens(tokens), method: EstimateMethod::LocalTokenizer };
        #[rustfmt::skip]
        let cases: Vec<Case<'_>> = vec![ // name                   replies                  output tokens                                              money
            ("nothing ran",         vec![],                  measured(0),                                                None),
            ("all is recorded",     vec![&full, &full],      measured(20),                                               Some(1.0)),
            ("one is counted here", vec![&full, &uncounted], estimated(14),                                              None),
            ("one is lost",         vec![&full, &lost],      Figure::Unavailable(FigureUnavailable::RecordLost),         None),
            ("a price of zero",     vec![&free],             measured(7),                                                None),
            ("zero beside a price", vec![&free, &full],      measured(17),                                               Some(0.5)),
            ("more than can be",    vec![&huge],             Figure::Unavailable(FigureUnavailable::Contradictory),      Some(0.5)),
        ];
        for (name, replies, tokens, cost) in cases {
            let usage = add_up(replies.into_iter(), None);
            assert_eq!(Figure::from(usage.output_tokens(&Bytes)), tokens, "{name}");
            assert_eq!(usage.cost_usd, cost, "{name}");
            assert_eq!(usage.input_tokens, None, "{name}");
        }
    }

    #[test]
    fn running_sums_stand_for_the_replies() {
        let (lost, uncounted) = (reply(None, None, None), reply(None, Some("abcd"), None));
        let sums = Reply { output_tokens: Some(99), input_tokens: Some(5), ..Reply::default() };
        let usage = add_up([&lost, &uncounted].into_iter(), Some(&sums));
        assert_eq!(usage.output_tokens(&Bytes), OutputTokens::Recorded(99));
        assert_eq!((usage.replies, usage.input_tokens), (2, Some(5)));
    }

    #[test]
    fn a_recorded_zero_beside_calls_is_no_figure() {
        let zero =
            RunTotals { model_calls: Some(3), input_tokens: Some(0), output_tokens: Some(0), cost_usd: Some(0.0) };
        let expected = RunTotals { model_calls: Some(3), ..RunTotals::default() };
        assert_eq!(zero.clone().without_empty_figures(), expected);
        let idle = RunTotals { model_calls: Some(0), ..zero };
        assert_eq!(idle.clone().without_empty_figures(), idle);
    }
}
