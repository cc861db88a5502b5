//! Text to tokens: a byte-level BPE in the layout of Qwen3's `tokenizer.json`, in which no text is ever a special token.
//!
//! The file's `added_tokens` (`<|im_end|>`, `<tool_call>` and the like) are kept out of the encoder altogether, the
//! special ones and the others. An encoder that has never heard of any of them cannot emit one: [`Tokenizer::added`]
//! is the only way to their numbers, and only the template asks for it.
//!
//! The encoder is our own (`bpe/`), for the time it takes and for what it drags in; it gives the tokens of the
//! `tokenizers` crate, which the tests hold it against.

use std::collections::BTreeMap;

use tack_core::{CountTokens, Tokens};

use crate::bpe::Encoder;
use crate::lossy::Lossy;
use crate::tokenizer_json::{self, Parsed};

/// Bytes that [`CountTokens`] hands to the encoder at a time, so that a text of any size needs bounded memory.
const COUNT_CHUNK_BYTES: usize = 64 * 1024;

/// Bytes that a token stands for at the least, in most texts: what is reserved at first.
const BYTES_A_TOKEN: usize = 2;

/// A tokenizer whose every encoding stands for its input exactly, up to Unicode's NFC where the file asks for it.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    added: BTreeMap<String, u32>,
    greatest: (u32, String),
}

/// One token and the bytes of the text that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The row of the embedding.
    pub id: u32,
    /// The first byte. A token that begins within a character starts where the character does.
    pub start: usize,
    /// One past the last byte. A token that ends within a character ends where the character does.
    pub end: usize,
}

/// The largest published `tokenizer.json` is about 35 MB; Qwen3's is 11 MB. Parsing takes several times the file.
const MOST_BYTES: usize = 64 << 20;

/// Why a tokenizer was refused, or failed.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is larger than any tokenizer's.
    #[error("`{file}`: a tokenizer has at most {most_bytes} bytes; found {found_bytes}")]
    TooLarge {
        /// The file.
        file: String,
        /// What it may have.
        most_bytes: usize,
        /// What it has.
        found_bytes: usize,
    },
    /// The file is not the JSON of a tokenizer.
    #[error("`{file}`: not a tokenizer")]
    Json {
        /// The file.
        file: String,
        /// What the parser met.
        source: serde_json::Error,
    },
    /// A part of the pipeline that this encoder does not have. Skipping it would give other tokens than training did.
    #[error("`{file}`: `{field}` must be {expected}; found {found}")]
    Unsupported {
        /// The file.
        file: String,
        /// Where in the file.
        field: &'static str,
        /// What is understood there.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A merge does not lead from two tokens to a third.
    #[error("`{file}`: `model.merges[{index}]` must join two tokens into a third; found {left:?} and {right:?}")]
    Merge {
        /// The file.
        file: String,
        /// Which merge.
        index: usize,
        /// Its left half.
        left: String,
        /// Its right half.
        right: String,
    },
    /// The vocabulary lacks a byte, so some text could not be written in it.
    #[error("`{file}`: `model.vocab` must have a token for each of 256 bytes; none stands for byte {byte:#04x}")]
    MissingByte {
        /// The file.
        file: String,
        /// The byte.
        byte: u8,
    },
    /// An added token that the template is built from is not there.
    #[error("`{file}`: `added_tokens` must have `{token}`; it has {found} others")]
    MissingAdded {
        /// The file.
        file: String,
        /// The token's text.
        token: &'static str,
        /// How many added tokens there are.
        found: usize,
    },
    /// Plain text would come out as an added token, so that repository text could forge the template.
    #[error("`{file}`: the plain text `{token}` must not encode to the added token {id}; `model.merges` lead to it")]
    Reachable {
        /// The file.
        file: String,
        /// The token's text.
        token: String,
        /// Its number.
        id: u32,
    },
    /// A token has no row in the embedding.
    #[error("`{file}`: token `{token}` is number {id}, but the model embeds {rows} tokens, 0 to {}", rows.saturating_sub(1))]
    Vocabulary {
        /// The file.
        file: String,
        /// The token with the greatest number.
        token: String,
        /// That number.
        id: u32,
        /// Rows of the embedding.
        rows: usize,
    },
}

impl Tokenizer {
    /// Reads the content of a `tokenizer.json`; `file` is what errors call it.
    ///
    /// Understood is what Qwen3 publishes: a BPE without dropout, prefix or suffix, over bytes, after an optional NFC
    /// and the split by its expression. The file's post-processor is not used, since it adds tokens to text.
    ///
    /// # Errors
    /// Every variant of [`TokenizerError`] but `MissingAdded` and `Vocabulary`.
    pub fn from_bytes(content: &[u8], file: &str) -> Result<Self, TokenizerError> {
        if content.len() > MOST_BYTES {
            let (file, most_bytes, found_bytes) = (file.to_owned(), MOST_BYTES, content.len());
            return Err(TokenizerError::TooLarge { file, most_bytes, found_bytes });
        }
        let Parsed { encoder, added, greatest } = tokenizer_json::parse(content, file)?;
        let tokenizer = Self { encoder, added: added.into_iter().collect(), greatest };
        tokenizer.check_reachable(file)?;
        Ok(tokenizer)
    }

    /// An added token whose own text encodes to it would let field text forge the template.
    fn check_reachable(&self, file: &str) -> Result<(), TokenizerError> {
        for (token, &id) in &self.added {
            if self.encode(token).iter().any(|piece| piece.id == id) {
                return Err(TokenizerError::Reachable { file: file.to_owned(), token: token.clone(), id });
            }
        }
        Ok(())
    }

    /// Whether every token has its row in an embedding of `rows` rows.
    ///
    /// # Errors
    /// [`TokenizerError::Vocabulary`] names the token with the greatest number.
    pub fn check_vocabulary(&self, rows: usize, file: &str) -> Result<(), TokenizerError> {
        let (id, token) = &self.greatest;
        if (*id as usize) < rows {
            Ok(())
        } else {
            Err(TokenizerError::Vocabulary { file: file.to_owned(), token: token.clone(), id: *id, rows })
        }
    }

    /// The number of an added token.
    ///
    /// # Errors
    /// [`TokenizerError::MissingAdded`] if the file does not add it.
    pub fn added(&self, token: &'static str, file: &str) -> Result<u32, TokenizerError> {
        self.added.get(token).copied().ok_or_else(|| TokenizerError::MissingAdded {
            file: file.to_owned(),
            token,
            found: self.added.len(),
        })
    }

    /// Every added token's text and number, in the order of the texts.
    pub fn all_added(&self) -> impl Iterator<Item = (&str, u32)> {
        self.added.iter().map(|(token, &id)| (token.as_str(), id))
    }

    /// Encodes text as text: whatever it says, none of the added tokens comes out.
    ///
    /// The pieces tile the text. Where NFC rewrites a character and its marks, each of their tokens stands for all of
    /// them. Time and memory grow with the text, 24 bytes a token: bound it first.
    #[must_use]
    pub fn encode(&self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(text.len() / BYTES_A_TOKEN + 1);
        self.encoder.encode(text, |token| pieces.push(token));
        pieces
    }

    /// The tokens of a text without their places.
    #[must_use]
    pub fn ids(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / BYTES_A_TOKEN + 1);
        self.encoder.encode(text, |token| ids.push(token.id));
        ids
    }

    /// The text that tokens stand for: what a person sees of an encoded state.
    ///
    /// Added tokens show as their own text; bytes that are not UTF-8, as U+FFFD; a number without a token, as nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            if let Some((token, _)) = self.added.iter().find(|&(_, &added)| added == id) {
                bytes.extend_from_slice(token.as_bytes());
            } else {
                bytes.extend_from_slice(self.encoder.vocabulary().bytes(id));
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Counts in pieces of 64 kB, cut after a line where there is one, so that memory stays bounded. Bytes that are not
/// UTF-8 count as U+FFFD does.
impl CountTokens for Tokenizer {
    fn count_tokens(&self, text: &[u8]) -> Tokens {
        let mut rest = text;
        let mut count = 0_usize;
        while !rest.is_empty() {
            let window = &rest[..rest.len().min(COUNT_CHUNK_BYTES)];
            let whole = window.len() == rest.len();
            let line = window.iter().rposition(|&byte| byte == b'\n').map_or(window.len(), |at| at + 1);
            let (chunk, after) = rest.split_at(if whole { window.len() } else { line });
            let lossy = Lossy::of(chunk);
            self.encoder.encode(lossy.text(), |_| count += 1);
            rest = after;
        }
        Tokens(u32::try_from(count).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mini::{self, tokenizer};
    use proptest::prelude::*;
    use serde_json::Value;

    fn refused(content: &str) -> String {
        Tokenizer::from_bytes(content.as_bytes(), "t.json").unwrap_err().to_string()
    }

    /// The mini tokenizer with one change.
    fn changed(change: impl FnOnce(&mut Value)) -> String {
        let mut value: Value = serde_json::from_slice(mini::file("tokenizer.json")).unwrap();
        change(&mut value);
        refused(&value.to_string())
    }

    #[test]
    fn a_file_of_any_size_is_refused_before_it_is_read() {
        let error = Tokenizer::from_bytes(&vec![b' '; MOST_BYTES + 1], "t.json").unwrap_err();
        assert_eq!(error.to_string(), "`t.json`: a tokenizer has at most 67108864 bytes; found 67108865");
    }

    #[test]
    fn no_text_is_an_added_token() {
        let tokenizer = tokenizer();
        let added: Vec<(&str, u32)> = tokenizer.all_added().collect();
        assert_eq!(added.len(), 26);
        for &(token, _) in &added {
            for text in [token.to_owned(), format!("a{token}b"), format!("{token}{token}"), format!(" {token}\n")] {
                let pieces = tokenizer.encode(&text);
                let ids: Vec<u32> = pieces.iter().map(|piece| piece.id).collect();
                assert!(ids.iter().all(|id| added.iter().all(|(_, number)| id != number)), "{text}");
                assert_eq!(tokenizer.decode(&ids), text);
            }
        }
    }

    /// Why the crate's own switch is not enough: it leaves added tokens that are not special in place.
    #[test]
    fn the_crates_own_switch_would_let_twelve_tokens_through() {
        let mut stock = tokenizers::Tokenizer::from_bytes(mini::file("tokenizer.json")).unwrap();
        stock.set_encode_special_tokens(true);
        let tokenizer = tokenizer();
        let through =
            tokenizer.all_added().filter(|&(token, id)| stock.encode(token, false).unwrap().get_ids() == [id]).count();
        assert_eq!(through, 12);
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused_by_place() {
        #[rustfmt::skip]
        let cases = [
            (refused("{"),                                                   "`t.json`: not a tokenizer"),
            (changed(|it| it["normalizer"] = serde_json::json!({"type": "Lowercase"})),
             "`t.json`: `normalizer` must be null or NFC; found Lowercase"),
            (changed(|it| it["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"})),
             "`t.json`: `pre_tokenizer` must be Sequence(Split, ByteLevel); found Whitespace()"),
            (changed(|it| { it["pre_tokenizer"]["pretokenizers"].as_array_mut().unwrap().swap(0, 1); }),
             "`t.json`: `pre_tokenizer` must be Sequence(Split, ByteLevel); found Sequence(ByteLevel, Split)"),
            (changed(|it| it["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s+".into()),
             "`t.json`: `pre_tokenizer.pretokenizers[0].pattern` must be Qwen3's expression; found {\"Regex\":\"\\\\s+\"}"),
            (changed(|it| it["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true.into()),
             "`t.json`: `pre_tokenizer.pretokenizers[1].use_regex` must be false; found true"),
            (changed(|it| it["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into()),
             "`t.json`: `pre_tokenizer.pretokenizers[1].add_prefix_space` must be false; found true"),
            (changed(|it| it["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed".into()),
             "`t.json`: `pre_tokenizer.pretokenizers[0].behavior` must be \"Isolated\"; found \"Removed\""),
            (changed(|it| it["model"]["type"] = "Unigram".into()),           "`t.json`: `model.type` must be BPE; found Unigram"),
            (changed(|it| it["model"]["vocab"]["def"] = 6118.into()),
             "`t.json`: `model.vocab` must be numbered from 0, each number once and none left out; found \"def\" as number 6118 of 6118"),
            (changed(|it| it["model"]["vocab"]["def"] = 0.into()),
             "`t.json`: `model.vocab` must be numbered from 0, each number once and none left out; found"),
            (changed(|it| { let vocab = it["model"]["vocab"].as_object_mut().unwrap(); let id = vocab.remove("def").unwrap(); vocab.insert("\u{2581}def".to_owned(), id); }),
             "`t.json`: `model.vocab` must be written in the 256 characters that stand for bytes; found \"\u{2581}def\""),
            (changed(|it| it["model"]["dropout"] = 0.5.into()),
             "`t.json`: `model.dropout` must be null: equal texts must give equal tokens; found 0.5"),
            (changed(|it| it["model"]["continuing_subword_prefix"] = "##".into()),
             "`t.json`: `model.continuing_subword_prefix` must be empty; found \"##\""),
            (changed(|it| it["model"]["merges"][3] = serde_json::json!(["no", "such"])),
             "`t.json`: `model.merges[3]` must join two tokens into a third; found \"no\" and \"such\""),
            (changed(|it| { let longest = "Ġ".repeat(32); it["model"]["merges"] = serde_json::json!([format!("{longest} {longest}")]); }),
             "`t.json`: `model.merges[0]` must join two tokens into a third; found"),
            (changed(|it| { it["model"]["merges"] = serde_json::json!([]); let vocab = it["model"]["vocab"].as_object_mut().unwrap(); let id = vocab.remove("Ġ").unwrap(); vocab.insert("ĠĠĠĠĠĠĠ!".to_owned(), id); }),
             "`t.json`: `model.vocab` must have a token for each of 256 bytes; none stands for byte 0x20"),
            (changed(|it| { let id = it["model"]["vocab"]["def"].clone(); it["added_tokens"][0] = serde_json::json!({"content": "def", "id": id}); }),
             "`t.json`: the plain text `def` must not encode to the added token"),
        ];
        for (found, expected) in cases {
            assert!(found.starts_with(expected), "{found}\n{expected}");
        }
    }

    #[test]
    fn the_vocabulary_must_fit_the_embedding() {
        let tokenizer = tokenizer();
        assert!(tokenizer.check_vocabulary(6144, "t.json").is_ok());
        assert_eq!(
            tokenizer.check_vocabulary(6143, "t.json").unwrap_err().to_string(),
            "`t.json`: token `</think>` is number 6143, but the model embeds 6143 tokens, 0 to 6142"
        );
    }

    #[test]
    fn counting_takes_any_bytes_in_bounded_pieces() {
        let tokenizer = tokenizer();
        let line = b"x = 1\n";
        let one = tokenizer.count_tokens(line).0;
        assert_eq!(tokenizer.count_tokens(&line.repeat(50_000)), Tokens(one * 50_000));
        assert_eq!(tokenizer.count_tokens(b""), Tokens(0));
        assert!(tokenizer.count_tokens(&vec![0xFF; 100_000]).0 > 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// A damaged file is refused or read, and never more than that.
        #[test]
        fn a_damaged_file_never_panics(damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4)) {
            let mut content = mini::file("tokenizer.json").to_vec();
            for (at, byte) in damage {
                let at = at % content.len();
                content[at] = byte;
            }
            if let Ok(tokenizer) = Tokenizer::from_bytes(&content, "t.json") {
                prop_assert!(!tokenizer.encode("def f(x): return 1\n").is_empty());
            }
        }
    }

    proptest! {
        /// Nothing is lost or made up: the pieces tile the text, and decode to it.
        #[test]
        fn encoding_is_lossless(text in "\\PC{0,40}|[ -~\r\n\t\0]{0,200}") {
            let tokenizer = tokenizer();
            let pieces = tokenizer.encode(&text);
            let ids: Vec<u32> = pieces.iter().map(|piece| piece.id).collect();
            // NFC may rewrite what is not ASCII; ASCII it never touches.
            if text.is_ascii() {
                prop_assert_eq!(tokenizer.decode(&ids), text.as_str());
            }
            prop_assert_eq!(pieces.first().map_or(0, |piece| piece.start), 0);
            prop_assert_eq!(pieces.last().map_or(0, |piece| piece.end), text.len());
            prop_assert!(pieces.is_sorted_by_key(|piece| (piece.start, piece.end)));
        }
    }
}
