//! The patch between a base and what became of it.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput, TokenSource};

use crate::restore::patch::ObjectId;
use crate::restore::patch::binary::write_literal;
use crate::restore::path::{TreePath, text};
use crate::restore::tree::{Base, Changes, File, Mode, ReadError};

/// Lines of context around a change, as git has them by default.
const CONTEXT: u32 = 3;
/// Git takes a file for binary if one of its first bytes is NUL.
const LOOKED_AT_BYTES: usize = 8_000;
const NO_OBJECT: &str = "0000000000000000000000000000000000000000";

/// The patch that makes `changes` out of `base`, byte for byte: what `git diff --binary --full-index --no-renames`
/// would say of the same two trees, up to the choice among equally good hunks. Paths that end as they began are left
/// out.
///
/// # Errors
/// [`ReadError`] where a file of the base cannot be had.
pub fn write(base: &impl Base, changes: &Changes) -> Result<Vec<u8>, ReadError> {
    let mut patch = Vec::new();
    for (path, new) in changes {
        let old = base.read(path)?;
        match (old.as_deref(), new.as_ref()) {
            (None, None) => {}
            (Some(old), Some(new)) if old == new => {}
            // Git says a change of kind as a deletion and a creation.
            (Some(old), Some(new)) if (old.mode == Mode::Symlink) != (new.mode == Mode::Symlink) => {
                part(path, Some(old), None, &mut patch);
                part(path, None, Some(new), &mut patch);
            }
            (old, new) => part(path, old, new, &mut patch),
        }
    }
    Ok(patch)
}

fn part(path: &TreePath, old: Option<&File>, new: Option<&File>, patch: &mut Vec<u8>) {
    let (a, b) = ([b"a/", path.as_bytes()].concat(), [b"b/", path.as_bytes()].concat());
    let mut line = |it: String| {
        patch.extend(it.bytes());
        patch.push(b'\n');
    };
    line(format!("diff --git {} {}", text(&a), text(&b)));
    let mut kept = String::new();
    match (old, new) {
        (None, Some(new)) => line(format!("new file mode {}", new.mode.as_str())),
        (Some(old), None) => line(format!("deleted file mode {}", old.mode.as_str())),
        (Some(old), Some(new)) if old.mode != new.mode => {
            line(format!("old mode {}", old.mode.as_str()));
            line(format!("new mode {}", new.mode.as_str()));
        }
        (Some(old), _) => kept = format!(" {}", old.mode.as_str()),
        (None, None) => {}
    }
    let bytes = |side: Option<&File>| side.map_or_else(Vec::new, |it| it.bytes.clone());
    let (old_bytes, new_bytes) = (bytes(old), bytes(new));
    if old_bytes == new_bytes && old.is_some() && new.is_some() {
        return;
    }
    let id = |side: Option<&File>| side.map_or_else(|| NO_OBJECT.to_owned(), |it| ObjectId::of(&it.bytes).to_string());
    line(format!("index {}..{}{kept}", id(old), id(new)));
    if old_bytes == new_bytes {
        return;
    }
    if is_binary(&old_bytes) || is_binary(&new_bytes) {
        line("GIT binary patch".to_owned());
        write_literal(&new_bytes, patch);
        write_literal(&old_bytes, patch);
        return;
    }
    let side = |name: &[u8], there: bool| {
        if !there {
            return "/dev/null".to_owned();
        }
        let text = text(name);
        // A name with a space would be cut by patch(1).
        if text.contains(' ') && !text.starts_with('"') { text + "\t" } else { text }
    };
    line(format!("--- {}", side(&a, old.is_some())));
    line(format!("+++ {}", side(&b, new.is_some())));
    hunks(&old_bytes, &new_bytes, patch);
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(LOOKED_AT_BYTES).any(|it| *it == 0)
}

/// The lines of a file, each with its newline where it has one.
struct FileLines<'a>(&'a [u8]);

impl<'a> TokenSource for FileLines<'a> {
    type Token = &'a [u8];
    type Tokenizer = Box<dyn Iterator<Item = &'a [u8]> + 'a>;

    fn tokenize(&self) -> Self::Tokenizer {
        Box::new(self.0.split_inclusive(|it| *it == b'\n'))
    }

    fn estimate_tokens(&self) -> u32 {
        u32::try_from(self.0.len() / 32).unwrap_or(u32::MAX)
    }
}

fn hunks(old: &[u8], new: &[u8], patch: &mut Vec<u8>) {
    let input = InternedInput::new(FileLines(old), FileLines(new));
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let (old_lines, new_lines): (Vec<&[u8]>, Vec<&[u8]>) =
        (FileLines(old).tokenize().collect(), FileLines(new).tokenize().collect());
    let count = |lines: &[&[u8]]| u32::try_from(lines.len()).unwrap_or(u32::MAX);
    let mut changes = diff.hunks().map(|it| (it.before, it.after)).peekable();
    while let Some(first) = changes.next() {
        let mut group = vec![first];
        while let Some(next) =
            changes.next_if(|(before, _)| group.last().is_some_and(|it| before.start - it.0.end <= 2 * CONTEXT))
        {
            group.push(next);
        }
        hunk(&group, &old_lines, &new_lines, count(&old_lines), patch);
    }
}

/// One hunk: changes that are close together, and the lines around them.
fn hunk(group: &[(Range<u32>, Range<u32>)], old: &[&[u8]], new: &[&[u8]], old_count: u32, patch: &mut Vec<u8>) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let above = first.0.start.min(CONTEXT);
    let below = (old_count - last.0.end).min(CONTEXT);
    let range = |from: u32, to: u32| {
        let count = to - from;
        // An empty side names the line before it.
        let start = if count == 0 { from } else { from + 1 };
        if count == 1 { format!("{start}") } else { format!("{start},{count}") }
    };
    let old_range = range(first.0.start - above, last.0.end + below);
    let new_range = range(first.1.start - above, last.1.end + below);
    patch.extend(format!("@@ -{old_range} +{new_range} @@\n").bytes());
    let mut lines = |mark: u8, side: &[&[u8]], range: Range<u32>| {
        for line in side.get(range.start as usize..range.end as usize).unwrap_or_default() {
            patch.push(mark);
            patch.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                patch.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
        }
    };
    let mut at = first.0.start - above;
    for (before, after) in group {
        lines(b' ', old, at..before.start);
        lines(b'-', old, before.clone());
        lines(b'+', new, after.clone());
        at = before.end;
    }
    lines(b' ', old, at..at + below);
}
