//! What the recorded run had used by the decision point. None of it is part of the state; the budget is.

use tack_core::{CountTokens, Micros};

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

/// Output tokens, and where the figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputTokens {
    /// The provider counted every reply.
    Recorded(u64),
    /// Some replies were counted here, with another tokeniser than the provider's.
    Estimated {
        /// The sum of what the provider counted and what was counted here.
        tokens: u64,
        /// How many replies were counted here.
        replies_counted_here: u32,
    },
    /// Some replies have neither a count nor a text.
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
    use tack_core::Tokens;

    struct Bytes;
    impl CountTokens for Bytes {
        fn count_tokens(&self, text: &[u8]) -> Tokens {
            Tokens(u32::try_from(text.len()).unwrap())
        }
    }

    fn reply(output_tokens: Option<u64>, text: Option<&str>, cost_usd: Option<f64>) -> Reply {
        Reply { output_tokens, text: text.map(|it| it.as_bytes().to_vec()), cost_usd, ..Reply::default() }
    }

    #[test]
    fn unknown_is_not_zero_and_counted_here_is_marked() {
        let full = reply(Some(10), Some("abc"), Some(0.5));
        let uncounted = reply(None, Some("abcd"), None);
        let lost = reply(None, None, None);
        let free = reply(Some(7), None, Some(0.0));
        #[rustfmt::skip]
        let cases: [(&str, Vec<&Reply>, OutputTokens, Option<f64>); 6] = [
            ("nothing ran",         vec![],                  OutputTokens::Recorded(0),                                          None),
            ("all is recorded",     vec![&full, &full],      OutputTokens::Recorded(20),                                         Some(1.0)),
            ("one is counted here", vec![&full, &uncounted], OutputTokens::Estimated { tokens: 14, replies_counted_here: 1 },    None),
            ("one is lost",         vec![&full, &lost],      OutputTokens::Unavailable { lost_replies: 1 },                      None),
            ("a price of zero",     vec![&free],             OutputTokens::Recorded(7),                                          None),
            ("zero beside a price", vec![&free, &full],      OutputTokens::Recorded(17),                                         Some(0.5)),
        ];
        for (name, replies, tokens, cost) in cases {
            let usage = add_up(replies.into_iter(), None);
            assert_eq!(usage.output_tokens(&Bytes), tokens, "{name}");
            assert_eq!(usage.cost_usd, cost, "{name}");
            assert_eq!(usage.input_tokens, None, "{name}");
        }
    }
}
