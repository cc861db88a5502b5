//! The class of a character, as the pre-tokenizer's expression divides them.

use std::sync::LazyLock;

use super::unicode;

/// The four kinds of character that the expression tells apart, newlines apart from other space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// Everything else: punctuation, symbols, marks, controls, what is not assigned.
    Other,
    /// `\p{L}`.
    Letter,
    /// `\p{N}`.
    Number,
    /// `\s` without the two of `Newline`.
    Space,
    /// `\r` and `\n`.
    Newline,
}

/// The class of each byte that is a character; a byte of a longer character has none.
pub(crate) static OF_BYTE: [Option<Class>; 256] = {
    let mut table = [None; 256];
    let mut byte = 0_u8;
    while byte < 0x80 {
        table[byte as usize] = Some(match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\r' | b'\n' => Class::Newline,
            b'\t' | 0x0B | 0x0C | b' ' => Class::Space,
            _ => Class::Other,
        });
        byte += 1;
    }
    table
};

/// A byte a code point: `LETTER`, `NUMBER` or `SPACE`, and `MOVES`. Laid out flat, since only the pages of scripts that
/// occur are ever touched.
static OF_CODE_POINT: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut table = vec![0; char::MAX as usize + 1].into_boxed_slice();
    for (ranges, bits) in
        [(unicode::LETTER, LETTER), (unicode::NUMBER, NUMBER), (unicode::SPACE, SPACE), (unicode::MOVES, MOVES)]
    {
        for &(first, last) in ranges {
            for entry in &mut table[first as usize..=last as usize] {
                *entry |= bits;
            }
        }
    }
    table
});

const LETTER: u8 = 1;
const NUMBER: u8 = 2;
const SPACE: u8 = 3;
const CLASS: u8 = 3;
const MOVES: u8 = 4;

/// The class of a character that is not ASCII.
pub(crate) fn wide(character: char) -> Class {
    match OF_CODE_POINT[character as usize] & CLASS {
        LETTER => Class::Letter,
        NUMBER => Class::Number,
        SPACE => Class::Space,
        _ => Class::Other,
    }
}

/// Whether NFC may change the character, reorder it, or compose it with what stands before it.
pub(crate) fn moves(character: char) -> bool {
    OF_CODE_POINT[character as usize] & MOVES != 0
}
