//! A git diff's text to its parts.

use std::str;

use crate::restore::patch::binary::{decode_line, inflate};
use crate::restore::patch::{
    Binary, Body, Change, Content, Hunk, Kind, Line, Modes, ObjectId, PATCH_BYTES_MAX, Part, Patch, PatchError,
};
use crate::restore::path::{TreePath, text, unquote};
use crate::restore::tree::Mode;

/// How much of a line an error shows.
const SHOWN_CHARS: usize = 120;

impl Patch {
    /// Reads a git diff; no bytes at all are the empty patch.
    ///
    /// # Errors
    /// [`PatchError`], with the line of the patch.
    pub fn parse(bytes: &[u8]) -> Result<Self, PatchError> {
        if bytes.len() > PATCH_BYTES_MAX {
            return Err(PatchError::Size { found: bytes.len() });
        }
        let mut lines = Lines { rest: bytes, number: 0 };
        let mut parts = Vec::new();
        while lines.peek().is_some() {
            parts.push(part(&mut lines)?);
        }
        Ok(Self { parts })
    }
}

/// The lines of a patch, with their numbers.
struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Lines<'a> {
    /// The next line without its newline.
    fn peek(&self) -> Option<&'a [u8]> {
        (!self.rest.is_empty()).then(|| self.rest.split(|byte| *byte == b'\n').next().unwrap_or_default())
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let line = self.peek()?;
        self.rest = self.rest.get(line.len() + 1..).unwrap_or_default();
        self.number += 1;
        Some(line)
    }

    /// An error about the line that comes next.
    fn expected(&self, expected: &'static str) -> PatchError {
        PatchError::Syntax { line: self.number + 1, expected, found: shown(self.peek()) }
    }

    fn refused(&self, what: &'static str) -> PatchError {
        PatchError::Refused { line: self.number + 1, what }
    }

    /// What follows `prefix` on the next line, if it starts so.
    fn after(&self, prefix: &str) -> Option<&'a [u8]> {
        self.peek()?.strip_prefix(prefix.as_bytes())
    }

    /// Takes the next line if it starts so, and answers with the rest of it.
    fn take(&mut self, prefix: &str) -> Option<&'a [u8]> {
        let rest = self.after(prefix)?;
        self.next();
        Some(rest)
    }

    /// The path that the next line names.
    fn path(&self, name: &[u8]) -> Result<TreePath, PatchError> {
        TreePath::new(name).map_err(|source| PatchError::Path { line: self.number + 1, path: text(name), source })
    }
}

/// A line for a message: quoted, cut, and with nothing that a terminal would obey.
pub(super) fn shown(line: Option<&[u8]>) -> String {
    let Some(line) = line else { return "the end".to_owned() };
    let text = String::from_utf8_lossy(line);
    let mut cut: String = text.chars().take(SHOWN_CHARS).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

/// The lines between the first and the content.
#[derive(Default)]
struct Header<'a> {
    created: Option<Mode>,
    deleted: Option<Mode>,
    old_mode: Option<Mode>,
    new_mode: Option<Mode>,
    renamed_from: Option<TreePath>,
    renamed_to: Option<TreePath>,
    copied_from: Option<TreePath>,
    copied_to: Option<TreePath>,
    /// Two object names, and the mode where it stays.
    objects: Option<(&'a [u8], &'a [u8])>,
    kept_mode: Option<Mode>,
}

/// One file's part: the header, the names, the hunks.
fn part(lines: &mut Lines<'_>) -> Result<Part, PatchError> {
    let Some(names) = lines.after("diff --git ") else {
        return Err(lines.expected("`diff --git a/PATH b/PATH`"));
    };
    let first = Lines { rest: lines.rest, number: lines.number };
    lines.next();
    let header = header(lines)?;
    let modes = match (header.old_mode, header.new_mode, header.kept_mode) {
        (Some(old), Some(new), _) => Modes::Changed(old, new),
        (None, None, Some(kept)) => Modes::Kept(kept),
        _ => Modes::Unsaid,
    };
    let moved = |from: TreePath, to: TreePath| -> Result<(TreePath, TreePath), PatchError> {
        if names_are(names, &from, &to) { Ok((from, to)) } else { Err(first.expected("the names of the lines below")) }
    };
    let fault = "one of: a new file, a deleted file, new modes, a rename, a copy";
    let (path, change) = match header {
        Header {
            renamed_from: Some(from),
            renamed_to: Some(to),
            copied_from: None,
            copied_to: None,
            created: None,
            deleted: None,
            ..
        } => {
            let (from, to) = moved(from, to)?;
            (to, Change::Rename { from })
        }
        Header {
            copied_from: Some(from),
            copied_to: Some(to),
            renamed_from: None,
            renamed_to: None,
            created: None,
            deleted: None,
            ..
        } => {
            let (from, to) = moved(from, to)?;
            (to, Change::Copy { from })
        }
        Header {
            renamed_from: None, renamed_to: None, copied_from: None, copied_to: None, created, deleted, ..
        } => {
            let name = one_name(names).ok_or_else(|| {
                first.expected("`diff --git a/PATH b/PATH`, twice the same path (two only in a rename or a copy)")
            })?;
            let change = match (created, deleted, modes) {
                (None, None, _) => Change::Modify,
                (Some(mode), None, Modes::Unsaid) => Change::Create(mode),
                (None, Some(mode), Modes::Unsaid) => Change::Delete(mode),
                _ => return Err(first.expected(fault)),
            };
            (first.path(&name)?, change)
        }
        _ => return Err(first.expected(fault)),
    };
    let content = content(lines, &path, &change, header.objects)?;
    if content == Content::Kept && change == Change::Modify && !matches!(modes, Modes::Changed(..)) {
        return Err(lines.expected("a change of the file that the lines above name"));
    }
    Ok(Part { path, change, modes, content })
}

/// The name in `a/NAME b/NAME`, where both are one; either may be quoted.
fn one_name(names: &[u8]) -> Option<Vec<u8>> {
    let (old, new) = if let Some((old, rest)) = unquote(names) {
        (old, second_name(rest.strip_prefix(b" ")?)?)
    } else {
        // The halves have one length, so a path with spaces needs no guess.
        let (old, new) = names.split_at(names.len().saturating_sub(1) / 2);
        (old.to_vec(), new.strip_prefix(b" ")?.to_vec())
    };
    let (old, new) = (old.strip_prefix(b"a/")?, new.strip_prefix(b"b/")?);
    (old == new).then(|| old.to_vec())
}

fn second_name(name: &[u8]) -> Option<Vec<u8>> {
    if !name.starts_with(b"\"") {
        return Some(name.to_vec());
    }
    unquote(name).filter(|(_, rest)| rest.is_empty()).map(|(name, _)| name)
}

/// Whether the first line of a part is `a/FROM b/TO`; either may be quoted.
fn names_are(names: &[u8], from: &TreePath, to: &TreePath) -> bool {
    let (old, new) = ([b"a/", from.as_bytes()].concat(), [b"b/", to.as_bytes()].concat());
    let rest = match unquote(names) {
        Some((name, rest)) => (name == old).then_some(rest),
        None => names.strip_prefix(old.as_slice()),
    };
    rest.and_then(|it| it.strip_prefix(b" ")).and_then(second_name).is_some_and(|it| it == new)
}

/// The lines between the first and the content, each at most once.
fn header<'a>(lines: &mut Lines<'a>) -> Result<Header<'a>, PatchError> {
    let mut header = Header::default();
    while lines.peek().is_some() {
        if let Some(mode) = lines.after("old mode ") {
            once(lines, &mut header.old_mode, mode, mode_of)?;
            if lines.after("new mode ").is_none() {
                return Err(lines.expected("`new mode`, after `old mode`"));
            }
        } else if let Some(mode) = lines.after("new mode ") {
            if header.old_mode.is_none() {
                return Err(lines.expected("`old mode` before `new mode`"));
            }
            once(lines, &mut header.new_mode, mode, mode_of)?;
        } else if let Some(mode) = lines.after("new file mode ") {
            once(lines, &mut header.created, mode, mode_of)?;
        } else if let Some(mode) = lines.after("deleted file mode ") {
            once(lines, &mut header.deleted, mode, mode_of)?;
        } else if let Some(name) = lines.after("rename from ") {
            once(lines, &mut header.renamed_from, name, path_of)?;
        } else if let Some(name) = lines.after("rename to ") {
            once(lines, &mut header.renamed_to, name, path_of)?;
        } else if let Some(name) = lines.after("copy from ") {
            once(lines, &mut header.copied_from, name, path_of)?;
        } else if let Some(name) = lines.after("copy to ") {
            once(lines, &mut header.copied_to, name, path_of)?;
        } else if let Some(objects) = lines.after("index ") {
            index(lines, objects, &mut header)?;
        } else if lines.take("similarity index ").is_none() && lines.take("dissimilarity index ").is_none() {
            break;
        }
    }
    Ok(header)
}

/// `index OLD..NEW`, and the mode where it stays.
fn index<'a>(lines: &mut Lines<'a>, line: &'a [u8], header: &mut Header<'a>) -> Result<(), PatchError> {
    let (names, mode) = match line.iter().position(|it| *it == b' ') {
        Some(at) => (&line[..at], Some(&line[at + 1..])),
        None => (line, None),
    };
    let dots = names.windows(2).position(|it| it == b"..").filter(|_| header.objects.is_none());
    let Some(dots) = dots else { return Err(lines.expected("`index OLD..NEW`, once")) };
    let is_name = |it: &[u8]| it.iter().all(u8::is_ascii_hexdigit);
    let (old, new) = (&names[..dots], &names[dots + 2..]);
    if !is_name(old) || !is_name(new) {
        return Err(lines.expected("`index OLD..NEW`, two object names"));
    }
    if let Some(mode) = mode {
        header.kept_mode = Some(mode_of(lines, mode)?);
    }
    header.objects = Some((old, new));
    lines.next();
    Ok(())
}

/// Reads the value of the next line into `place`, which must be empty.
fn once<'a, T>(
    lines: &mut Lines<'a>,
    place: &mut Option<T>,
    value: &'a [u8],
    read: fn(&Lines<'a>, &'a [u8]) -> Result<T, PatchError>,
) -> Result<(), PatchError> {
    if place.is_some() {
        return Err(lines.expected("each line of a header once"));
    }
    *place = Some(read(lines, value)?);
    lines.next();
    Ok(())
}

fn mode_of(lines: &Lines<'_>, digits: &[u8]) -> Result<Mode, PatchError> {
    match digits {
        b"100644" => Ok(Mode::Regular),
        b"100755" => Ok(Mode::Executable),
        b"120000" => Ok(Mode::Symlink),
        b"160000" => Err(lines.refused("a submodule (its commit is not in the patch, so no tree can be made of it)")),
        _ => Err(lines.expected("a mode: 100644, 100755 or 120000")),
    }
}

fn path_of(lines: &Lines<'_>, name: &[u8]) -> Result<TreePath, PatchError> {
    match second_name(name) {
        Some(name) => lines.path(&name),
        None => Err(lines.expected("a file name, quoted as git quotes where it is quoted")),
    }
}

/// What follows the header.
fn content(
    lines: &mut Lines<'_>,
    path: &TreePath,
    change: &Change,
    objects: Option<(&[u8], &[u8])>,
) -> Result<Content, PatchError> {
    if lines.after("Binary files ").is_some() {
        return Err(lines.refused("a binary change without its content (`git diff --binary` writes it)"));
    }
    if lines.peek() == Some(b"GIT binary patch") {
        let ids = objects.and_then(|(old, new)| Some((ObjectId::parse(old)?, ObjectId::parse(new)?)));
        let Some((old, new)) = ids else {
            return Err(lines.expected("a line `index OLD..NEW` with whole object names above a binary hunk"));
        };
        lines.next();
        let body = binary_body(lines)?;
        // The way back, which git writes too, and nobody here goes.
        if lines.after("literal ").is_some() || lines.after("delta ").is_some() {
            binary_body(lines)?;
        }
        let some = |it: ObjectId| (!it.is_none()).then_some(it);
        return Ok(Content::Binary(Binary { old: some(old), new: some(new), body }));
    }
    if lines.after("--- ").is_none() {
        return Ok(Content::Kept);
    }
    let old = match change {
        Change::Create(_) => None,
        Change::Rename { from } | Change::Copy { from } => Some(from),
        Change::Modify | Change::Delete(_) => Some(path),
    };
    let new = (!matches!(change, Change::Delete(_))).then_some(path);
    side(lines, "--- ", "a/", old)?;
    side(lines, "+++ ", "b/", new)?;
    let mut hunks = Vec::new();
    while lines.after("@@").is_some() {
        hunks.push(hunk(lines)?);
    }
    if hunks.is_empty() {
        return Err(lines.expected("a hunk (`@@ -l,n +l,n @@`)"));
    }
    Ok(Content::Hunks(hunks))
}

/// `--- a/PATH` or `+++ b/PATH`, or `/dev/null` where there is no such side; git ends a name with spaces by a tab.
fn side(lines: &mut Lines<'_>, marker: &'static str, prefix: &str, path: Option<&TreePath>) -> Result<(), PatchError> {
    let found = lines.after(marker).and_then(|it| second_name(it.strip_suffix(b"\t").unwrap_or(it)));
    let expected = path.map_or_else(|| b"/dev/null".to_vec(), |it| [prefix.as_bytes(), it.as_bytes()].concat());
    if found.is_some_and(|it| it == expected) {
        lines.next();
        return Ok(());
    }
    Err(lines.expected(match (marker, path) {
        ("--- ", Some(_)) => "`--- a/PATH` with the path of the header",
        ("--- ", None) => "`--- /dev/null`, since the file is new",
        (_, Some(_)) => "`+++ b/PATH` with the path of the header",
        (_, None) => "`+++ /dev/null`, since the file is deleted",
    }))
}

/// `literal N` or `delta N`, its lines, and an empty one.
fn binary_body(lines: &mut Lines<'_>) -> Result<Body, PatchError> {
    let delta = lines.after("delta ");
    let size = delta.or_else(|| lines.after("literal ")).and_then(number);
    let Some(size) = size else { return Err(lines.expected("`literal N` or `delta N`")) };
    let heading = Lines { rest: lines.rest, number: lines.number };
    lines.next();
    let mut compressed = Vec::new();
    while let Some(line) = lines.peek().filter(|it| !it.is_empty()) {
        compressed.extend(decode_line(line).ok_or_else(|| lines.expected("a line of base85, or an empty one"))?);
        lines.next();
    }
    if lines.next().is_none() {
        return Err(lines.expected("an empty line after the binary hunk"));
    }
    let bytes = inflate(&compressed, size)
        .ok_or_else(|| heading.expected("a hunk that inflates to as many bytes as it counts, at most 64 MiB"))?;
    Ok(if delta.is_some() { Body::Delta(bytes) } else { Body::Literal(bytes) })
}

/// One hunk: its header, then exactly as many lines as the header counts.
fn hunk(lines: &mut Lines<'_>) -> Result<Hunk, PatchError> {
    const HEADER: &str = "a hunk header (`@@ -l,n +l,n @@`)";
    let ((old_start, mut old_left), (new_start, mut new_left)) =
        lines.peek().and_then(hunk_ranges).ok_or_else(|| lines.expected(HEADER))?;
    lines.next();
    let mut body: Vec<Line> = Vec::new();
    while old_left > 0 || new_left > 0 {
        let line = lines.peek().ok_or_else(|| lines.expected("the rest of the hunk"))?;
        let (kind, old, new) = match line.first() {
            Some(b' ') => (Kind::Context, 1, 1),
            Some(b'-') => (Kind::Removed, 1, 0),
            Some(b'+') => (Kind::Added, 0, 1),
            _ => return Err(lines.expected("a line of the hunk, starting with ` `, `-` or `+`")),
        };
        let (Some(old), Some(new)) = (old_left.checked_sub(old), new_left.checked_sub(new)) else {
            return Err(lines.expected("as many lines as the hunk's header counts"));
        };
        (old_left, new_left) = (old, new);
        let mut bytes = line.get(1..).unwrap_or_default().to_vec();
        lines.next();
        if lines.take("\\ ").is_none() {
            bytes.push(b'\n');
        }
        body.push(Line { kind, bytes });
    }
    Ok(Hunk { old_start, new_start, lines: body })
}

/// `(start, count)` of both sides, starts 0-based. An empty side's header names the line before it.
fn hunk_ranges(line: &[u8]) -> Option<((usize, usize), (usize, usize))> {
    let line = line.strip_prefix(b"@@ -")?.split(|byte| *byte == b'@').next()?.strip_suffix(b" ")?;
    let plus = line.windows(2).position(|it| it == b" +")?;
    let range = |text: &[u8]| {
        let (start, count) = match text.iter().position(|it| *it == b',') {
            Some(at) => (number(&text[..at])?, number(&text[at + 1..])?),
            None => (number(text)?, 1),
        };
        Some((if count == 0 { start } else { start.checked_sub(1)? }, count))
    };
    Some((range(&line[..plus])?, range(&line[plus + 2..])?))
}

/// A decimal number of digits alone (`parse` would take a plus sign).
fn number(digits: &[u8]) -> Option<usize> {
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let value: u32 = all.then(|| str::from_utf8(digits).ok()?.parse().ok()).flatten()?;
    usize::try_from(value).ok()
}
