//! Text to tokens: a byte-level BPE in the layout of Qwen3's `tokenizer.json`, in which no text is ever a special token.
//!
//! The file's `added_tokens` (`<|im_end|>`, `<tool_call>` and the like) are kept out of the encoder altogether. The
//! `tokenizers` crate can be told to treat *special* added tokens as text, but it goes on matching the added tokens
//! that are not marked special, which in Qwen3 are twelve of twenty-six. An encoder that has never heard of any of
//! them cannot emit one: [`Tokenizer::added`] is the only way to their numbers, and only the template asks for it.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value;
use tack_core::{CountTokens, Tokens};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{DecoderWrapper, Model, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

use crate::lossy::Lossy;

/// Bytes that [`CountTokens`] hands to the encoder at a time, so that a text of any size needs bounded memory.
const COUNT_CHUNK_BYTES: usize = 64 * 1024;

/// A tokenizer whose every encoding stands for its input exactly, up to Unicode's NFC where the file asks for it.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    added: BTreeMap<String, u32>,
    byte_of: HashMap<char, u8>,
    greatest: (u32, String),
}

type Encoder = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

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

/// Why a tokenizer was refused, or failed.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
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
    /// The encoder refused a text. With a token for each byte there is no text that it may refuse.
    #[error("the encoder refused a text of {bytes} bytes")]
    Encode {
        /// The text's size.
        bytes: usize,
        /// The encoder's reason.
        source: tokenizers::Error,
    },
}

/// `tokenizer.json`, as far as it is looked at by hand.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Value,
    model: Bpe,
}

#[derive(Deserialize)]
struct Bpe {
    #[serde(rename = "type")]
    kind: String,
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
    vocab: Vocab,
    merges: Vec<Merge>,
}

/// A merge as a pair, or as older files have it: two halves around a blank.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

impl Tokenizer {
    /// Reads the content of a `tokenizer.json`; `file` is what errors call it.
    ///
    /// Understood is what Qwen3 publishes: a BPE without dropout, prefix or suffix, over bytes, after an optional NFC
    /// and splits that lose nothing. The file's post-processor is not used, since it adds tokens to text.
    ///
    /// # Errors
    /// Every variant of [`TokenizerError`] but `MissingAdded`, `Vocabulary` and `Encode`.
    pub fn from_bytes(content: &[u8], file: &str) -> Result<Self, TokenizerError> {
        let json = |source| TokenizerError::Json { file: file.to_owned(), source };
        let parts: File = serde_json::from_slice(content).map_err(json)?;
        check_normalizer(parts.normalizer.as_ref(), file)?;
        check_pre_tokenizer(&parts.pre_tokenizer, file)?;
        let greatest = parts.model.vocab.iter().map(|(token, &id)| (id, token.clone()));
        let greatest = greatest.chain(parts.added_tokens.iter().map(|it| (it.id, it.content.clone())));
        let greatest = greatest.max().unwrap_or_default();

        let mut encoder = Encoder::new(model(parts.model, file)?);
        encoder.with_pre_tokenizer(Some(
            serde_json::from_value::<PreTokenizerWrapper>(parts.pre_tokenizer).map_err(json)?,
        ));
        if let Some(normalizer) = parts.normalizer {
            let normalizer = serde_json::from_value::<NormalizerWrapper>(normalizer).map_err(json)?;
            // Fails only over added tokens, of which this encoder has none.
            encoder.with_normalizer(Some(normalizer)).map_err(|source| TokenizerError::Encode { bytes: 0, source })?;
        }

        let byte_of: HashMap<char, u8> = (0..=u8::MAX).map(|byte| (byte_level_char(byte), byte)).collect();
        for (&character, &byte) in &byte_of {
            if encoder.get_model().token_to_id(character.encode_utf8(&mut [0; 4])).is_none() {
                return Err(TokenizerError::MissingByte { file: file.to_owned(), byte });
            }
        }
        let added: BTreeMap<String, u32> = parts.added_tokens.into_iter().map(|it| (it.content, it.id)).collect();
        let tokenizer = Self { encoder, added, byte_of, greatest };
        tokenizer.check_reachable(file)?;
        Ok(tokenizer)
    }

    /// An added token whose own text encodes to it would let field text forge the template.
    fn check_reachable(&self, file: &str) -> Result<(), TokenizerError> {
        for (token, &id) in &self.added {
            if self.encode(token)?.iter().any(|piece| piece.id == id) {
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
    /// Memory and time grow with the text: bound it first.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`], which no known text causes.
    pub fn encode(&self, text: &str) -> Result<Vec<Piece>, TokenizerError> {
        let encoding =
            self.encoder.encode(text, false).map_err(|source| TokenizerError::Encode { bytes: text.len(), source })?;
        let pieces = encoding.get_ids().iter().zip(encoding.get_offsets());
        Ok(pieces.map(|(&id, &(start, end))| Piece { id, start, end }).collect())
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
            } else if let Some(token) = self.encoder.get_model().id_to_token(id) {
                bytes.extend(token.chars().filter_map(|character| self.byte_of.get(&character)));
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Counts in pieces of 64 kB, cut after a line where there is one, so that memory stays bounded. Bytes that are not
/// UTF-8 count as U+FFFD does; a piece that the encoder refuses counts a token a byte, which is the most it can be.
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
            count += self.encode(lossy.text()).map_or(chunk.len(), |pieces| pieces.len());
            rest = after;
        }
        Tokens(u32::try_from(count).unwrap_or(u32::MAX))
    }
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("(no type)")
}

fn check_normalizer(normalizer: Option<&Value>, file: &str) -> Result<(), TokenizerError> {
    match normalizer {
        None => Ok(()),
        Some(one) if kind(one) == "NFC" => Ok(()),
        Some(other) => Err(TokenizerError::Unsupported {
            file: file.to_owned(),
            field: "normalizer",
            expected: "null or NFC",
            found: kind(other).to_owned(),
        }),
    }
}

/// Splits must keep all text, and bytes must come last: then no text is lost, and no space is made up.
fn check_pre_tokenizer(pre_tokenizer: &Value, file: &str) -> Result<(), TokenizerError> {
    let one = std::slice::from_ref(pre_tokenizer);
    let steps = match pre_tokenizer.get("pretokenizers").and_then(Value::as_array) {
        Some(steps) if kind(pre_tokenizer) == "Sequence" => steps.as_slice(),
        _ => one,
    };
    let is = |step: &Value, field: &str, value: &Value| step.get(field) == Some(value);
    let (last, splits) = steps.split_last().unwrap_or((pre_tokenizer, &[]));
    let lossless = splits.iter().all(|step| {
        kind(step) == "Split" && is(step, "behavior", &"Isolated".into()) && is(step, "invert", &false.into())
    });
    if lossless && kind(last) == "ByteLevel" && is(last, "add_prefix_space", &false.into()) {
        return Ok(());
    }
    Err(TokenizerError::Unsupported {
        file: file.to_owned(),
        field: "pre_tokenizer",
        expected: "ByteLevel without a prefix space, or a Sequence of isolating Splits that ends in it",
        found: format!("{}({})", kind(pre_tokenizer), steps.iter().map(kind).collect::<Vec<_>>().join(", ")),
    })
}

/// The BPE, each of its parts checked first: the crate's builder panics on a merge that is longer than any token.
fn model(parts: Bpe, file: &str) -> Result<BPE, TokenizerError> {
    let refuse =
        |field, expected, found| Err(TokenizerError::Unsupported { file: file.to_owned(), field, expected, found });
    if parts.kind != "BPE" {
        return refuse("model.type", "BPE", parts.kind);
    }
    if let Some(dropout) = parts.dropout.filter(|&it| it != 0.0) {
        return refuse("model.dropout", "null: equal texts must give equal tokens", dropout.to_string());
    }
    for (field, affix) in [
        ("model.continuing_subword_prefix", parts.continuing_subword_prefix),
        ("model.end_of_word_suffix", parts.end_of_word_suffix),
    ] {
        if let Some(affix) = affix.filter(|it| !it.is_empty()) {
            return refuse(field, "empty", format!("{affix:?}"));
        }
    }
    let vocab = parts.vocab;
    let mut merges = Vec::with_capacity(parts.merges.len());
    for (index, merge) in parts.merges.into_iter().enumerate() {
        let (left, right) = match merge {
            Merge::Pair(left, right) => (left, right),
            Merge::Line(line) => {
                line.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())).unwrap_or_default()
            }
        };
        if !(vocab.contains_key(&left) && vocab.contains_key(&right) && vocab.contains_key(&format!("{left}{right}"))) {
            return Err(TokenizerError::Merge { file: file.to_owned(), index, left, right });
        }
        merges.push((left, right));
    }
    BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(parts.ignore_merges)
        .build()
        .map_err(|source| TokenizerError::Encode { bytes: 0, source })
}

/// The character that byte-level BPE writes for a byte (GPT-2's table): itself where it is printable Latin-1, else the
/// next one from U+0100 on, in the order of the bytes.
fn byte_level_char(byte: u8) -> char {
    const fn is_printable(byte: u8) -> bool {
        matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
    }
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&earlier| !is_printable(earlier)).count();
    // At most 67 bytes are not printable, and all of U+0100 to U+0143 are characters.
    u32::try_from(rank).ok().and_then(|rank| char::from_u32(0x100 + rank)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mini::{self, tokenizer};
    use proptest::prelude::*;

    fn refused(content: &str) -> String {
        Tokenizer::from_bytes(content.as_bytes(), "t.json").unwrap_err().to_string()
    }

    /// The mini tokenizer with one change.
    fn changed(change: impl FnOnce(&mut Value)) -> String {
        let mut value: Value = serde_json::from_slice(mini::TOKENIZER_JSON).unwrap();
        change(&mut value);
        refused(&value.to_string())
    }

    #[test]
    fn the_bytes_have_256_characters_and_the_published_landmarks() {
        let all: HashMap<char, u8> = (0..=u8::MAX).map(|byte| (byte_level_char(byte), byte)).collect();
        assert_eq!(all.len(), 256);
        for (byte, character) in [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'\t', 'ĉ'), (b'!', '!'), (0xAD, '\u{143}'), (0xFF, 'ÿ')]
        {
            assert_eq!(byte_level_char(byte), character, "{byte:#04x}");
        }
    }

    #[test]
    fn no_text_is_an_added_token() {
        let tokenizer = tokenizer();
        let added: Vec<(&str, u32)> = tokenizer.all_added().collect();
        assert_eq!(added.len(), 26);
        for &(token, _) in &added {
            for text in [token.to_owned(), format!("a{token}b"), format!("{token}{token}"), format!(" {token}\n")] {
                let pieces = tokenizer.encode(&text).unwrap();
                let ids: Vec<u32> = pieces.iter().map(|piece| piece.id).collect();
                assert!(ids.iter().all(|id| added.iter().all(|(_, number)| id != number)), "{text}");
                assert_eq!(tokenizer.decode(&ids), text);
            }
        }
    }

    /// Why the crate's own switch is not enough: it leaves added tokens that are not special in place.
    #[test]
    fn the_crates_own_switch_would_let_twelve_tokens_through() {
        let mut stock = tokenizers::Tokenizer::from_bytes(mini::TOKENIZER_JSON).unwrap();
        stock.set_encode_special_tokens(true);
        let tokenizer = tokenizer();
        let through =
            tokenizer.all_added().filter(|&(token, id)| stock.encode(token, false).unwrap().get_ids() == [id]).count();
        assert_eq!(through, 12);
    }

    #[test]
    fn agrees_with_the_stock_pipeline_on_plain_text() {
        let stock = tokenizers::Tokenizer::from_bytes(mini::TOKENIZER_JSON).unwrap();
        for text in ["", "def f(x):\r\n\treturn x  \n", "naïve e\u{301} \u{17f}s 1234", "日本語 🙂\0", "don't 'S"]
        {
            let ids: Vec<u32> = tokenizer().encode(text).unwrap().iter().map(|piece| piece.id).collect();
            assert_eq!(ids, stock.encode(text, false).unwrap().get_ids(), "{text:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused_by_place() {
        #[rustfmt::skip]
        let cases = [
            (refused("{"),                                                   "`t.json`: not a tokenizer"),
            (changed(|it| it["normalizer"] = serde_json::json!({"type": "Lowercase"})),
             "`t.json`: `normalizer` must be null or NFC; found Lowercase"),
            (changed(|it| it["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"})),
             "`t.json`: `pre_tokenizer` must be ByteLevel without a prefix space, or a Sequence of isolating Splits that ends in it; found Whitespace(Whitespace)"),
            (changed(|it| it["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed".into()),
             "`t.json`: `pre_tokenizer` must be ByteLevel without a prefix space, or a Sequence of isolating Splits that ends in it; found Sequence(Split, ByteLevel)"),
            (changed(|it| it["model"]["type"] = "Unigram".into()),           "`t.json`: `model.type` must be BPE; found Unigram"),
            (changed(|it| it["model"]["dropout"] = 0.5.into()),
             "`t.json`: `model.dropout` must be null: equal texts must give equal tokens; found 0.5"),
            (changed(|it| it["model"]["continuing_subword_prefix"] = "##".into()),
             "`t.json`: `model.continuing_subword_prefix` must be empty; found \"##\""),
            (changed(|it| it["model"]["merges"][3] = serde_json::json!(["no", "such"])),
             "`t.json`: `model.merges[3]` must join two tokens into a third; found \"no\" and \"such\""),
            (changed(|it| { let longest = "Ġ".repeat(32); it["model"]["merges"] = serde_json::json!([format!("{longest} {longest}")]); }),
             "`t.json`: `model.merges[0]` must join two tokens into a third; found"),
            (changed(|it| { it["model"]["merges"] = serde_json::json!([]); it["model"]["vocab"].as_object_mut().unwrap().remove("Ġ"); }),
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
            let mut content = mini::TOKENIZER_JSON.to_vec();
            for (at, byte) in damage {
                let at = at % content.len();
                content[at] = byte;
            }
            if let Ok(tokenizer) = Tokenizer::from_bytes(&content, "t.json") {
                prop_assert!(!tokenizer.encode("def f(x): return 1\n").unwrap().is_empty());
            }
        }
    }

    proptest! {
        /// Nothing is lost or made up: the pieces tile the text, and decode to it.
        #[test]
        fn encoding_is_lossless(text in "\\PC{0,40}|[ -~\r\n\t\0]{0,200}") {
            let tokenizer = tokenizer();
            let pieces = tokenizer.encode(&text).unwrap();
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
