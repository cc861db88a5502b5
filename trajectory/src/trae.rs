//! Trae agent's rows for patch selection: one instance a line, with its issue and several candidate patches.
//!
//! Found: instance, issue, patches. Lost: base, observations, budget, tokens, money, time. `success_id` and
//! `regressions` are outcomes and never enter the tree. `--instance ID` picks a row, `ID#3` its fourth candidate.

use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause, Gap};
use crate::json::{At, Node};
use crate::recording::Recording;
use crate::rows::{numbered, pick};
use crate::shown::Shown;
use crate::{Options, Rows};

/// Reads the candidate that `options` ask for.
pub(crate) fn read(rows: &[Node<'_>], options: &Options<'_>) -> Result<Recording, Problem> {
    let rows: Vec<_> = rows.iter().enumerate().map(|(index, row)| At::row(row, index)).collect();
    let ids = rows
        .iter()
        .map(|row| row.required("instance_id", "the id of the instance")?.text())
        .collect::<Result<Vec<_>, _>>()?;
    let (id, candidate) = match options.instance {
        Some(asked) if !ids.contains(&asked) => match numbered(asked) {
            Some((id, candidate)) => (Some(id), candidate),
            None => (Some(asked), 0),
        },
        asked => (asked, 0),
    };
    let picked = pick(&ids, id)?.rows;
    let row = rows[picked.picked];
    let patches: Vec<_> = row.required("patches", "an array of patches")?.items()?.collect();
    let Some(patch) = patches.get(candidate) else {
        let known = (0..patches.len()).map(|index| format!("{}#{index}", ids[picked.picked])).collect();
        return Err(Problem::UnknownInstance { asked: options.instance.unwrap_or_default().to_owned(), ids: known });
    };

    let mut recording = Recording::new(Format::Trae, Rows { count: rows.len(), picked: picked.picked });
    recording.instance = Some(ids[picked.picked].to_owned());
    recording.issue = row.bytes_at(&["issue"])?;
    recording.handed_in = true;
    recording.submission = match patch.node {
        Node::Null => None,
        _ => Some(patch.bytes()?),
    };
    if patches.len() > 1 {
        let (id, count) = (Shown(ids[picked.picked]), patches.len());
        let note = format!("the row has {count} candidates; this is `{id}#{candidate}`");
        recording.gaps.push(Gap::new(About::Selection, Cause::Chosen, note));
    }
    recording.gap(About::Base, Cause::Format, "the format has no base commit");
    recording.gap(About::Observations, Cause::Format, "the format has patches and no history: no observation is known");
    recording.gap(About::Budget, Cause::Format, "the format has no limits");
    Ok(recording)
}
