//! A patch's parts onto a base.

use std::collections::BTreeSet;

use crate::restore::patch::parse::shown;
use crate::restore::patch::{Change, Content, Hunk, Kind, Modes, Part, Patch, PatchError};
use crate::restore::path::{TreePath, text};
use crate::restore::tree::{Base, Changes, File, Mode};

impl Patch {
    /// What the patch makes of `base`, which is left as it is. Only files that the patch names are read.
    ///
    /// As with `git apply`, a part starts from what the parts above it made of its file, but a rename or a copy takes
    /// its source from the base; a file may be created where another part takes one away by renaming it.
    ///
    /// # Errors
    /// [`PatchError`], with file, hunk, and what was expected and found.
    pub fn apply(&self, base: &impl Base) -> Result<Changes, PatchError> {
        let mut leaving = BTreeSet::new();
        for part in &self.parts {
            if let Change::Rename { from } = &part.change
                && !leaving.insert(from)
            {
                return Err(PatchError::Twice { path: from.clone() });
            }
        }
        let mut application = Application { base, leaving, changes: Changes::new() };
        for part in &self.parts {
            application.part(part)?;
        }
        // Created and deleted again.
        application.changes.retain(|path, file| file.is_some() || base.has(path.as_bytes()));
        application.links()?;
        application.collisions()?;
        Ok(application.changes)
    }
}

struct Application<'a, B> {
    base: &'a B,
    /// The files that some part renames away.
    leaving: BTreeSet<&'a TreePath>,
    changes: Changes,
}

impl<B: Base> Application<'_, B> {
    fn part(&mut self, part: &Part) -> Result<(), PatchError> {
        let path = &part.path;
        let missing = |path: &TreePath| PatchError::Missing { path: path.clone() };
        let old = match &part.change {
            Change::Create(_) => {
                self.expect_free(path, false)?;
                None
            }
            Change::Delete(_) | Change::Modify => Some(self.now(path)?.ok_or_else(|| missing(path))?),
            Change::Rename { from } | Change::Copy { from } => {
                self.expect_free(path, true)?;
                Some(self.base.read(from)?.ok_or_else(|| missing(from))?.into_owned())
            }
        };
        let mode = part.mode(old.as_ref())?;
        let old_bytes = old.as_ref().map(|it| it.bytes.as_slice());
        let new = match &part.content {
            Content::Kept => old_bytes.unwrap_or_default().to_vec(),
            Content::Hunks(hunks) => apply_hunks(path, hunks, old_bytes.unwrap_or_default())?,
            Content::Binary(binary) => binary.apply(path, old_bytes)?,
        };
        match &part.change {
            Change::Delete(_) => {
                // Without a hunk there is nothing to hold the file against, unless it is empty.
                if !new.is_empty() {
                    return Err(PatchError::Remainder { path: path.clone(), found: new.len() });
                }
                self.changes.insert(path.clone(), None);
            }
            change => {
                self.changes.insert(path.clone(), Some(File { mode, bytes: new }));
                if let Change::Rename { from } = change {
                    // Where another file was renamed to that name already, it stays.
                    self.changes.entry(from.clone()).or_insert(None);
                }
            }
        }
        Ok(())
    }

    /// The file as the parts so far have made it.
    fn now(&self, path: &TreePath) -> Result<Option<File>, PatchError> {
        match self.changes.get(path) {
            Some(file) => Ok(file.clone()),
            None => Ok(self.base.read(path)?.map(std::borrow::Cow::into_owned)),
        }
    }

    /// A file is there as the parts so far have made it.
    fn has(&self, path: &[u8]) -> bool {
        self.changes.get(path).map_or_else(|| self.base.has(path), Option::is_some)
    }

    fn expect_free(&self, path: &TreePath, moved: bool) -> Result<(), PatchError> {
        let vacated = moved && !self.changes.contains_key(path) && self.leaving.contains(path);
        if self.has(path.as_bytes()) && !vacated {
            return Err(PatchError::Exists { path: path.clone() });
        }
        Ok(())
    }

    /// No symbolic link that the patch makes can lead out of the repository.
    fn links(&self) -> Result<(), PatchError> {
        for (path, file) in &self.changes {
            let Some(file) = file.as_ref().filter(|it| it.mode == Mode::Symlink) else { continue };
            if !stays_inside(path, &file.bytes) {
                let mut target = text(&file.bytes);
                target.truncate(200);
                return Err(PatchError::Link { path: path.clone(), target });
            }
        }
        Ok(())
    }

    /// No file that the patch makes is also a directory.
    fn collisions(&self) -> Result<(), PatchError> {
        for path in self.changes.iter().filter(|(_, file)| file.is_some()).map(|(path, _)| path) {
            if let Some(file) = path.parents().find(|it| self.has(it)) {
                return Err(PatchError::Collision { file: text(file), under: path.clone() });
            }
            if let Some(under) = self.under(path) {
                return Err(PatchError::Collision { file: path.to_string(), under });
            }
        }
        Ok(())
    }

    /// A file under `directory` that is there afterwards. The changed ones are looked at by [`Self::collisions`].
    fn under(&self, directory: &TreePath) -> Option<TreePath> {
        let prefix = [directory.as_bytes(), b"/"].concat();
        let mut from = prefix.clone();
        loop {
            let found = self.base.first_from(&from).filter(|it| it.as_bytes().starts_with(&prefix))?;
            if self.has(found.as_bytes()) {
                return Some(found.clone());
            }
            from = [found.as_bytes(), b"\0"].concat();
        }
    }
}

impl Part {
    /// The mode afterwards.
    fn mode(&self, old: Option<&File>) -> Result<Mode, PatchError> {
        let expect = |expected: Mode, found: Mode| {
            if expected == found {
                return Ok(());
            }
            Err(PatchError::Mode { path: self.path.clone(), expected: expected.as_str(), found: found.as_str() })
        };
        match (&self.change, self.modes, old) {
            (Change::Create(mode), ..) => Ok(*mode),
            (Change::Delete(mode), _, Some(old)) => expect(*mode, old.mode).map(|()| old.mode),
            (_, Modes::Changed(from, to), Some(old)) => expect(from, old.mode).map(|()| to),
            (_, Modes::Kept(kept), Some(old)) => {
                // Archives lose the executable bit, and this line only repeats it; a link is no file, though.
                if (kept == Mode::Symlink) != (old.mode == Mode::Symlink) {
                    expect(kept, old.mode)?;
                }
                Ok(old.mode)
            }
            (_, Modes::Unsaid, Some(old)) => Ok(old.mode),
            (_, _, None) => Err(PatchError::Missing { path: self.path.clone() }),
        }
    }
}

/// Whether a link at `path` to `target` cannot lead out of the repository: it is relative, goes up at its start alone
/// and no further than to the root. Then whatever other links it meets on its way down stay inside as well.
fn stays_inside(path: &TreePath, target: &[u8]) -> bool {
    let mut parts = target.split(|it| *it == b'/').peekable();
    let mut ups = 0;
    while parts.next_if(|it| matches!(*it, b".." | b".")).inspect(|it| ups += usize::from(*it == b"..")).is_some() {}
    !target.is_empty()
        && !target.starts_with(b"/")
        && !target.contains(&0)
        && ups <= path.depth()
        && parts.all(|it| it != b".." && !it.eq_ignore_ascii_case(b".git"))
}

fn apply_hunks(path: &TreePath, hunks: &[Hunk], old: &[u8]) -> Result<Vec<u8>, PatchError> {
    let old: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
    let (mut new, mut at, mut new_lines) = (Vec::with_capacity(old.len()), 0, 0);
    for (index, hunk) in hunks.iter().enumerate() {
        let number = index + 1;
        // What stands between two hunks is kept; a hunk beyond the end meets no line below, and says so.
        let kept = old.get(at..hunk.old_start.min(old.len())).unwrap_or_default();
        new.extend(kept.iter().copied().flatten().copied());
        new_lines += kept.len();
        at += kept.len();
        if (at, new_lines) != (hunk.old_start, hunk.new_start) {
            let found = hunk.new_start + 1;
            return Err(PatchError::Order { path: path.clone(), hunk: number, expected: new_lines + 1, found });
        }
        for line in &hunk.lines {
            if line.kind != Kind::Added {
                let found = old.get(at).copied();
                if found != Some(line.bytes.as_slice()) {
                    return Err(PatchError::Hunk {
                        path: path.clone(),
                        hunk: number,
                        line: at + 1,
                        expected: shown(Some(&line.bytes)),
                        found: shown(found),
                    });
                }
                at += 1;
            }
            if line.kind != Kind::Removed {
                new.extend_from_slice(&line.bytes);
                new_lines += 1;
            }
        }
    }
    new.extend(old.get(at..).unwrap_or_default().iter().copied().flatten().copied());
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_may_point_at_what_is_inside() {
        #[rustfmt::skip]
        let cases = [ // link, target, stays
            ("l",      "a",            true),
            ("l",      "./d/a",        true),
            ("d/l",    "../a",         true),
            ("d/e/l",  "../../a/b",    true),
            ("d/e/l",  "../.././../a", false),
            ("l",      "..",           false),
            ("d/l",    "..",           true),
            ("l",      "d/../a",       false),
            ("l",      "d/e/../../..", false),
            ("l",      "/etc/passwd",  false),
            ("l",      "",             false),
            ("l",      "a\0b",         false),
            ("l",      ".git/hooks",   false),
            ("l",      ".gitignore",   true),
        ];
        for (link, target, stays) in cases {
            assert_eq!(stays_inside(&TreePath::new(link).unwrap(), target.as_bytes()), stays, "{link} -> {target}");
        }
    }
}
