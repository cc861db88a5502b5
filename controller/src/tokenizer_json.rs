//! `tokenizer.json` as Qwen3 publishes it. A part of a pipeline that the encoder does not have is an error, since
//! skipping it would give other tokens than training did.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::bpe::{Encoder, MOST, PATTERN, Rules, UnknownMerge, Vocabulary};
use crate::tokenizer::TokenizerError;

/// What the file says, in the encoder's terms.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) encoder: Encoder,
    /// Text and number of each added token.
    pub(crate) added: Vec<(String, u32)>,
    /// The token with the greatest number.
    pub(crate) greatest: (u32, String),
}

#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

#[derive(Deserialize)]
struct Model<'a> {
    /// Files older than the field have BPE alone.
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(borrow)]
    vocab: Tokens<'a>,
    #[serde(borrow)]
    merges: Vec<Halves<'a>>,
}

/// A string of the file, borrowed where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Tokens and their numbers in the order of the file. There are 151,643: a map of owned strings takes longer to build
/// than all else here.
struct Tokens<'a>(Vec<(Cow<'a, str>, u32)>);

/// A merge: a pair, or as older files have it, two halves around a blank.
struct Halves<'a>(Cow<'a, str>, Cow<'a, str>);

pub(crate) fn parse(content: &[u8], file: &str) -> Result<Parsed, TokenizerError> {
    let json = |source| TokenizerError::Json { file: file.to_owned(), source };
    let content = std::str::from_utf8(content).map_err(|error| json(serde_json::Error::custom(error)))?;
    let File { added_tokens, normalizer, pre_tokenizer, model } = serde_json::from_str(content).map_err(json)?;
    let nfc = read_normalizer(normalizer.as_ref(), file)?;
    check_pre_tokenizer(pre_tokenizer.as_ref().unwrap_or(&Value::Null), file)?;
    check_model(&model, file)?;

    let names = in_order(&model.vocab.0, file)?;
    let last = names.len().checked_sub(1).and_then(|at| Some((u32::try_from(at).ok()?, names[at].to_owned())));
    let added: Vec<(String, u32)> = added_tokens.into_iter().map(|it| (it.content, it.id)).collect();
    let greatest = added.iter().map(|(token, id)| (*id, token.clone())).chain(last).max().unwrap_or_default();

    let vocabulary = vocabulary(&names, file)?;
    for byte in 0..=u8::MAX {
        if vocabulary.id(&[byte]).is_none() {
            return Err(TokenizerError::MissingByte { file: file.to_owned(), byte });
        }
    }
    let encoder = encoder(vocabulary, &model, nfc).map_err(|UnknownMerge { index }| {
        let (left, right) = model
            .merges
            .get(index)
            .map(|Halves(left, right)| (left.to_string(), right.to_string()))
            .unwrap_or_default();
        TokenizerError::Merge { file: file.to_owned(), index, left, right }
    })?;
    Ok(Parsed { encoder, added, greatest })
}

/// The tokens in the order of their numbers, which must run from 0 without a gap.
fn in_order<'a>(tokens: &'a [(Cow<'a, str>, u32)], file: &str) -> Result<Vec<&'a str>, TokenizerError> {
    let mut names: Vec<Option<&str>> = vec![None; tokens.len()];
    if tokens.len() >= MOST {
        return Err(TokenizerError::Unsupported {
            file: file.to_owned(),
            field: "model.vocab",
            expected: "of fewer than 2,097,152 tokens",
            found: tokens.len().to_string(),
        });
    }
    for (token, id) in tokens {
        match names.get_mut(*id as usize) {
            Some(name @ None) => *name = Some(token),
            _ => {
                return Err(TokenizerError::Unsupported {
                    file: file.to_owned(),
                    field: "model.vocab",
                    expected: "numbered from 0, each number once and none left out",
                    found: format!("{token:?} as number {id} of {}", tokens.len()),
                });
            }
        }
    }
    // As many places as tokens, and no place taken twice: none is empty.
    Ok(names.into_iter().flatten().collect())
}

fn vocabulary(names: &[&str], file: &str) -> Result<Vocabulary, TokenizerError> {
    let refuse = |token: &str| TokenizerError::Unsupported {
        file: file.to_owned(),
        field: "model.vocab",
        expected: "written in the 256 characters that stand for bytes",
        found: format!("{token:?}"),
    };
    let byte_of = byte_of_char();
    let mut bytes = Vec::with_capacity(names.iter().map(|it| it.len()).sum());
    let mut ends = Vec::with_capacity(names.len());
    for token in names {
        if !push_bytes(token, &byte_of, &mut bytes) || token.is_empty() {
            return Err(refuse(token));
        }
        ends.push(u32::try_from(bytes.len()).map_err(|_| refuse(token))?);
    }
    Ok(Vocabulary::new(bytes, ends))
}

fn encoder(vocabulary: Vocabulary, model: &Model<'_>, nfc: bool) -> Result<Encoder, UnknownMerge> {
    let byte_of = byte_of_char();
    let mut bytes = Vec::new();
    let mut pairs = Vec::with_capacity(model.merges.len());
    for Halves(left, right) in &model.merges {
        let mut id = |half: &str| {
            bytes.clear();
            push_bytes(half, &byte_of, &mut bytes).then(|| vocabulary.id(&bytes)).flatten()
        };
        pairs.push(id(left).zip(id(right)));
    }
    Encoder::new(vocabulary, pairs.into_iter(), &Rules { nfc, ignore_merges: model.ignore_merges })
}

/// Appends the bytes that a token's characters stand for; false if one of them stands for none.
fn push_bytes(token: &str, byte_of: &[Option<u8>; BYTE_CHARS], bytes: &mut Vec<u8>) -> bool {
    for character in token.chars() {
        match byte_of.get(character as usize) {
            Some(Some(byte)) => bytes.push(*byte),
            _ => return false,
        }
    }
    true
}

/// One past the greatest character that stands for a byte.
const BYTE_CHARS: usize = 0x144;

/// The byte that each character stands for in byte-level BPE.
fn byte_of_char() -> [Option<u8>; BYTE_CHARS] {
    let mut byte_of = [None; BYTE_CHARS];
    for byte in 0..=u8::MAX {
        byte_of[char_of_byte(byte) as usize] = Some(byte);
    }
    byte_of
}

/// The character that byte-level BPE writes for a byte (GPT-2's table): itself where it is printable Latin-1, else the
/// next one from U+0100 on, in the order of the bytes.
fn char_of_byte(byte: u8) -> char {
    const fn is_printable(byte: u8) -> bool {
        matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
    }
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&earlier| !is_printable(earlier)).count();
    // At most 67 bytes are not printable, and all of U+0100 to U+0143 are characters.
    u32::try_from(rank).ok().and_then(|rank| char::from_u32(0x100 + rank)).unwrap_or('\0')
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("(no type)")
}

/// Whether the file asks for NFC.
fn read_normalizer(normalizer: Option<&Value>, file: &str) -> Result<bool, TokenizerError> {
    match normalizer {
        None => Ok(false),
        Some(one) if kind(one) == "NFC" => Ok(true),
        Some(other) => Err(TokenizerError::Unsupported {
            file: file.to_owned(),
            field: "normalizer",
            expected: "null or NFC",
            found: kind(other).to_owned(),
        }),
    }
}

/// One split, by the one expression that the encoder is, and then bytes.
fn check_pre_tokenizer(pre_tokenizer: &Value, file: &str) -> Result<(), TokenizerError> {
    let refuse =
        |field, expected, found| Err(TokenizerError::Unsupported { file: file.to_owned(), field, expected, found });
    let steps = match pre_tokenizer.get("pretokenizers").and_then(Value::as_array) {
        Some(steps) if kind(pre_tokenizer) == "Sequence" => steps.as_slice(),
        _ => &[],
    };
    let [split, bytes] = steps else {
        let steps: Vec<&str> = steps.iter().map(kind).collect();
        let found = format!("{}({})", kind(pre_tokenizer), steps.join(", "));
        return refuse("pre_tokenizer", "Sequence(Split, ByteLevel)", found);
    };
    if (kind(split), kind(bytes)) != ("Split", "ByteLevel") {
        let found = format!("Sequence({}, {})", kind(split), kind(bytes));
        return refuse("pre_tokenizer", "Sequence(Split, ByteLevel)", found);
    }
    let part = |step: &Value, field: &str| step.get(field).unwrap_or(&Value::Null).to_string();
    let pattern = split.get("pattern").and_then(|it| it.get("Regex"));
    if pattern.and_then(Value::as_str) != Some(PATTERN) {
        return refuse("pre_tokenizer.pretokenizers[0].pattern", "Qwen3's expression", part(split, "pattern"));
    }
    for (field, step, key, expected) in [
        ("pre_tokenizer.pretokenizers[0].behavior", split, "behavior", "\"Isolated\""),
        ("pre_tokenizer.pretokenizers[0].invert", split, "invert", "false"),
        ("pre_tokenizer.pretokenizers[1].add_prefix_space", bytes, "add_prefix_space", "false"),
        ("pre_tokenizer.pretokenizers[1].use_regex", bytes, "use_regex", "false"),
    ] {
        if part(step, key) != expected {
            return refuse(field, expected, part(step, key));
        }
    }
    Ok(())
}

fn check_model(model: &Model<'_>, file: &str) -> Result<(), TokenizerError> {
    let refuse =
        |field, expected, found| Err(TokenizerError::Unsupported { file: file.to_owned(), field, expected, found });
    if let Some(kind) = model.kind.as_ref().filter(|it| *it != "BPE") {
        return refuse("model.type", "BPE", kind.clone());
    }
    if let Some(dropout) = model.dropout.filter(|&it| it != 0.0) {
        return refuse("model.dropout", "null: equal texts must give equal tokens", dropout.to_string());
    }
    for (field, affix) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(affix) = affix.as_ref().filter(|it| !it.is_empty()) {
            return refuse(field, "empty", format!("{affix:?}"));
        }
    }
    Ok(())
}

impl<'de: 'a, 'a> Deserialize<'de> for Tokens<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Tokens<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tokens and their numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut tokens = Vec::new();
                while let Some((Text(token), id)) = map.next_entry()? {
                    tokens.push((token, id));
                }
                Ok(Tokens(tokens))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Halves<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairOrLine;
        impl<'de> Visitor<'de> for PairOrLine {
            type Value = Halves<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("two halves of a token, in an array or around a blank")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
                let mut half =
                    |index| sequence.next_element::<Text<'de>>()?.ok_or_else(|| A::Error::invalid_length(index, &self));
                let (Text(left), Text(right)) = (half(0)?, half(1)?);
                Ok(Halves(left, right))
            }

            fn visit_borrowed_str<E: Error>(self, line: &'de str) -> Result<Self::Value, E> {
                let (left, right) = line.split_once(' ').unwrap_or((line, ""));
                Ok(Halves(Cow::Borrowed(left), Cow::Borrowed(right)))
            }

            fn visit_str<E: Error>(self, line: &str) -> Result<Self::Value, E> {
                let (left, right) = line.split_once(' ').unwrap_or((line, ""));
                Ok(Halves(Cow::Owned(left.to_owned()), Cow::Owned(right.to_owned())))
            }
        }
        deserializer.deserialize_any(PairOrLine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_have_256_characters_and_the_published_landmarks() {
        assert_eq!(byte_of_char().iter().flatten().count(), 256);
        for (byte, character) in [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'\t', 'ĉ'), (b'!', '!'), (0xAD, '\u{143}'), (0xFF, 'ÿ')]
        {
            assert_eq!(char_of_byte(byte), character, "{byte:#04x}");
        }
    }
}
