//! The tokens that merging leads to from their own bytes.
//!
//! A piece whose bytes are a token is that token only if merging them ends there. Running all 151,643 through the
//! merger would be half of what opening a tokenizer costs, so nearly all are told by their last merge alone.
//!
//! Take the token that `left` and `right` make, both reached. Apart, each would come to be; together they do too,
//! unless a pair across the border merges first. At any moment that pair is the last token of what stands for `left` by then
//! and the first of what stands for `right`: the edges of the two. It merges first if its rank is below the ranks of
//! the merges that are to take its halves inwards; of equal ranks the leftmost goes first. This holds where merges
//! happen in the order of their ranks, that is where each token's rank is above those of its halves, all the way down.

use super::merge::{Merger, Merges, NONE};
use super::vocabulary::Vocabulary;

/// Which tokens are reached, by number.
#[derive(Debug)]
pub(super) struct Reach(Vec<bool>);

/// How a token comes to be.
#[derive(Clone, Copy, Debug)]
enum Origin {
    Byte,
    /// By one merge, whose rank is above those by which its halves come to be.
    Rising(Join),
    /// In another way, or not at all.
    Other,
}

/// The merge of two tokens.
#[derive(Clone, Copy, Debug)]
struct Join {
    left: u32,
    right: u32,
    rank: u32,
}

impl Reach {
    pub(super) fn new(merges: &Merges, vocabulary: &Vocabulary) -> Self {
        let origins = origins(merges, vocabulary);
        let mut merger = Merger::default();
        let mut reached = vec![false; origins.len()];
        // In the order of the numbers. Where a half comes later it is not known to be reached, and the token is run.
        for (id, origin) in (0_u32..).zip(&origins) {
            let told = match *origin {
                Origin::Rising(join) if reached[join.left as usize] && reached[join.right as usize] => {
                    !crosses_first(&origins, merges, join)
                }
                _ => merger.leads_to(vocabulary.bytes(id), id, merges),
            };
            reached[id as usize] = told;
        }
        Self(reached)
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        self.0[id as usize]
    }
}

fn origins(merges: &Merges, vocabulary: &Vocabulary) -> Vec<Origin> {
    let mut origins = vec![Origin::Other; vocabulary.count()];
    let mut makers = vec![0_u32; origins.len()];
    let mut joins: Vec<(u32, Join)> =
        merges.iter().map(|(left, right, rank, made)| (made, Join { left, right, rank })).collect();
    for &(made, _) in &joins {
        makers[made as usize] += 1;
    }
    for (id, origin) in (0_u32..).zip(&mut origins) {
        if vocabulary.bytes(id).len() == 1 && makers[id as usize] == 0 {
            *origin = Origin::Byte;
        }
    }
    // By rank: the halves of a rising token have been classified before it.
    joins.sort_unstable_by_key(|(_, join)| join.rank);
    for (made, join) in joins {
        let below = |half: u32| match origins[half as usize] {
            Origin::Byte => true,
            Origin::Rising(of_half) => of_half.rank < join.rank,
            Origin::Other => false,
        };
        if makers[made as usize] == 1 && below(join.left) && below(join.right) {
            origins[made as usize] = Origin::Rising(join);
        }
    }
    origins
}

/// A token at the border, and the rank of the merge that takes it inwards.
#[derive(Clone, Copy, Debug)]
struct Edge {
    token: u32,
    until: u32,
}

/// Whether a pair across the border of `join` merges before both its sides are whole.
fn crosses_first(origins: &[Origin], merges: &Merges, join: Join) -> bool {
    let mut left = Edge { token: join.left, until: join.rank };
    let mut right = Edge { token: join.right, until: join.rank };
    // From the end back to the bytes: what was made last is taken apart first.
    loop {
        let rank = merges.rank(left.token, right.token);
        let taken = left.until.min(right.until);
        if rank != NONE && (rank < taken || (rank == taken && left.until > taken)) {
            return true;
        }
        match (origins[left.token as usize], origins[right.token as usize]) {
            // Where the two are one merge, the left one happened first, so the right one is taken apart first.
            (Origin::Rising(of_left), Origin::Rising(of_right)) if of_left.rank <= of_right.rank => {
                right = Edge { token: of_right.left, until: of_right.rank };
            }
            (Origin::Rising(of_left), _) => left = Edge { token: of_left.right, until: of_left.rank },
            (_, Origin::Rising(of_right)) => right = Edge { token: of_right.left, until: of_right.rank },
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(small: usize) -> u32 {
        u32::try_from(small).unwrap()
    }

    /// All 256 bytes, and tokens of `joins`: each takes two of the tokens before it, whatever their ranks.
    fn tables(joins: &[(usize, usize)], order: &[usize]) -> (Vocabulary, Merges) {
        let mut tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        // Only these few bytes occur in tokens, so that pairs collide.
        let mut parts: Vec<usize> = (97..100).collect();
        let mut pairs = Vec::new();
        for &(left, right) in joins {
            let (left, right) = (parts[left % parts.len()], parts[right % parts.len()]);
            let made = [tokens[left].as_slice(), &tokens[right]].concat();
            if made.len() > 24 {
                continue;
            }
            if !tokens.contains(&made) {
                parts.push(tokens.len());
                tokens.push(made);
            }
            pairs.push((number(left), number(right)));
        }
        for (index, &with) in order.iter().enumerate().take(pairs.len()) {
            let with = with % pairs.len();
            pairs.swap(index, with);
        }
        let ends = tokens
            .iter()
            .scan(0, |end, token| {
                *end += number(token.len());
                Some(*end)
            })
            .collect();
        let vocabulary = Vocabulary::new(tokens.concat(), ends);
        let merges = Merges::new(pairs.into_iter().map(Some), &vocabulary).unwrap();
        (vocabulary, merges)
    }

    fn assert_told_as_run((vocabulary, merges): &(Vocabulary, Merges)) {
        let reach = Reach::new(merges, vocabulary);
        let mut merger = Merger::default();
        for id in 0..number(vocabulary.count()) {
            let token = vocabulary.bytes(id);
            assert_eq!(reach.contains(id), merger.leads_to(token, id, merges), "{:?}", String::from_utf8_lossy(token));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_token_is_told_as_it_is_run(joins in prop::collection::vec((0..40_usize, 0..40_usize), 0..24)) {
            assert_told_as_run(&tables(&joins, &[]));
        }

        #[test]
        fn so_it_is_where_ranks_do_not_rise(
            joins in prop::collection::vec((0..40_usize, 0..40_usize), 0..24),
            order in prop::collection::vec(0..24_usize, 0..6),
        ) {
            assert_told_as_run(&tables(&joins, &order));
        }
    }
}
