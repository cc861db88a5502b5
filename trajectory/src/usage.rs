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
    /// Replies that have neither a count nor a text, or a count that no sum can hold: they were charged, and nobody
    /// can tell how much.
    pub lost_replies: u32,
    /// Money in US dollars; known if every reply has its cost. A cost of zero is none, but where the reply is known to
    /// have used no token.
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
        let mut counted = self.uncounted_replies.iter().map(|reply| u64::from(counter.count_tokens(reply).0));
        let replies_counted_here = u32::try_from(self.uncounted_replies.len()).unwrap_or(u32::MAX);
        match counted.try_fold(self.recorded_output_tokens, u64::checked_add) {
            Some(tokens) => OutputTokens::Estimated { tokens, replies_counted_here },
            None => OutputTokens::Unavailable { lost_replies: replies_counted_here },
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

/// What it cost to use so many tokens; `None` where nobody knew. A run on a local or a replayed model writes 0, so a
/// zero is a price only where it is known that nothing was used.
pub(crate) fn known_cost(cost_usd: Option<f64>, tokens: [Option<u64>; 2]) -> Option<f64> {
    cost_usd.filter(|&cost| cost.is_finite() && (cost > 0.0 || (cost == 0.0 && tokens == [Some(0), Some(0)])))
}

/// The sum of two counts; unknown as soon as one is, or where no counter holds it.
pub(crate) fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one?.checked_add(other?)
}

/// Adds up the replies of a prefix of a recording. Where the recorder kept running `sums`, they stand for what the
/// replies say of themselves.
pub(crate) fn add_up<'r>(replies: impl Iterator<Item = &'r Reply>, sums: Option<&Reply>) -> Usage {
    let mut usage =
        Usage { input_tokens: Some(0), cached_input_tokens: Some(0), cost_usd: Some(0.0), ..Usage::default() };
    for reply in replies {
        usage.replies += 1;
        usage.input_tokens = sum(usage.input_tokens, reply.input_tokens);
        usage.cached_input_tokens = sum(usage.cached_input_tokens, reply.cached_input_tokens);
        let cost = known_cost(reply.cost_usd, [reply.input_tokens, reply.output_tokens]);
        usage.cost_usd = usage.cost_usd.zip(cost).map(|(sum, more)| sum + more);
        match (reply.output_tokens, &reply.text) {
            (Some(tokens), _) => match usage.recorded_output_tokens.checked_add(tokens) {
                Some(sum) => usage.recorded_output_tokens = sum,
                None => usage.lost_replies += 1,
            },
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
        usage.cost_usd = known_cost(sums.cost_usd, [sums.input_tokens, sums.output_tokens]);
        if let Some(tokens) = sums.output_tokens {
            usage.recorded_output_tokens = tokens;
            usage.uncounted_replies.clear();
            usage.lost_replies = 0;
        }
    }
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
        let endless = reply(Some(u64::MAX), None, Some(0.5));
        let negative = reply(Some(7), None, Some(-0.5));
        let idle = Reply { input_tokens: Some(0), output_tokens: Some(0), cost_usd: Some(0.0), ..Reply::default() };
        let measured = |tokens| Figure::Measured(Tokens(tokens));
        let estimated = |tokens| Figure::Estimated { value: Tokens(tokens), method: EstimateMethod::LocalTokenizer };
        #[rustfmt::skip]
        let cases: Vec<Case<'_>> = vec![ // name                   replies                  output tokens                                              money
            ("nothing ran",         vec![],                  measured(0),                                                None),
            ("all is recorded",     vec![&full, &full],      measured(20),                                               Some(1.0)),
            ("one is counted here", vec![&full, &uncounted], estimated(14),                                              None),
            ("one is lost",         vec![&full, &lost],      Figure::Unavailable(FigureUnavailable::RecordLost),         None),
            ("a price of zero",     vec![&free],             measured(7),                                                None),
            ("zero beside a price", vec![&free, &full],      measured(17),                                               None),
            ("nothing was used",    vec![&idle, &full],      measured(10),                                               Some(0.5)),
            ("less than nothing",   vec![&negative, &full],  measured(17),                                               None),
            ("more than a counter", vec![&full, &endless],   Figure::Unavailable(FigureUnavailable::RecordLost),         Some(1.0)),
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
    fn a_sum_that_no_counter_holds_is_unknown() {
        let of = |input_tokens| Reply { input_tokens: Some(input_tokens), output_tokens: Some(1), ..Reply::default() };
        let (most, one) = (of(u64::MAX), of(1));
        assert_eq!(add_up([&most].into_iter(), None).input_tokens, Some(u64::MAX));
        assert_eq!(add_up([&most, &one].into_iter(), None).input_tokens, None);
        let counted =
            Usage { recorded_output_tokens: u64::MAX, uncounted_replies: vec![b"a".to_vec()], ..Usage::default() };
        assert_eq!(counted.output_tokens(&Bytes), OutputTokens::Unavailable { lost_replies: 1 });
    }

    #[test]
    fn running_sums_stand_for_the_replies() {
        let (lost, uncounted) = (reply(None, None, None), reply(None, Some("abcd"), None));
        let sums = Reply { output_tokens: Some(99), input_tokens: Some(5), ..Reply::default() };
        let usage = add_up([&lost, &uncounted].into_iter(), Some(&sums));
        assert_eq!(usage.output_tokens(&Bytes), OutputTokens::Recorded(99));
        assert_eq!((usage.replies, usage.input_tokens), (2, Some(5)));
        for (cost_usd, expected) in [(Some(0.5), Some(0.5)), (Some(0.0), None), (None, None)] {
            let sums = Reply { cost_usd, ..sums.clone() };
            assert_eq!(add_up([&lost].into_iter(), Some(&sums)).cost_usd, expected);
        }
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
