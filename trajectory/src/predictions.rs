//! SWE-bench predictions: `instance_id`, `model_name_or_path`, `model_patch`, as a list, an object by instance id, or
//! JSON lines.
//!
//! Found: instance, patch (`null` is unknown, `""` is empty). Lost: everything else. The issue comes from the caller.

use crate::Options;
use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause};
use crate::json::{At, Node};
use crate::recording::Recording;
use crate::rows::pick;

/// JSON lines.
pub(crate) fn lines(rows: &[Node<'_>], options: &Options<'_>) -> Result<Recording, Problem> {
    let rows: Vec<_> = rows.iter().enumerate().map(|(index, row)| At::row(row, index)).collect();
    of_rows(&rows, options)
}

/// A list.
pub(crate) fn list(root: At<'_, '_>, options: &Options<'_>) -> Result<Recording, Problem> {
    of_rows(&root.items()?.collect::<Vec<_>>(), options)
}

/// An object by instance id, in which each prediction may leave its id to its key.
pub(crate) fn by_id(root: At<'_, '_>, options: &Options<'_>) -> Result<Recording, Problem> {
    let mut ids = Vec::new();
    let mut rows = Vec::new();
    for (id, row) in root.members()? {
        ids.push(id);
        rows.push(row);
    }
    of_ids(&ids, &rows, options)
}

fn of_rows(rows: &[At<'_, '_>], options: &Options<'_>) -> Result<Recording, Problem> {
    let mut ids = Vec::new();
    for row in rows {
        ids.push(row.required("instance_id", "the id of the instance")?.text()?);
    }
    of_ids(&ids, rows, options)
}

fn of_ids(ids: &[&str], rows: &[At<'_, '_>], options: &Options<'_>) -> Result<Recording, Problem> {
    let picked = pick(ids, options.instance)?;
    let mut recording = Recording::new(Format::Predictions, picked.rows);
    recording.instance = Some(ids[picked.rows.picked].to_owned());
    recording.gaps.extend(picked.gap);
    let row = rows[picked.rows.picked];
    recording.handed_in = true;
    recording.submission = match row.node.member("model_patch") {
        // `null` is a patch that nobody knows; a row without the key is no prediction.
        Some(Node::Null) => None,
        _ => Some(row.required("model_patch", "the patch, or null")?.bytes()?),
    };
    recording.gap(About::Base, Cause::Format, "the format has no base commit");
    recording.gap(About::Observations, Cause::Format, "the format has a patch and no history: no observation is known");
    recording.gap(About::Budget, Cause::Format, "the format has no limits");
    Ok(recording)
}
