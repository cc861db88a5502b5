//! Tells a file's format from its shape, and hands it to the reader.

use crate::error::Problem;
use crate::format::Format;
use crate::gap::{About, Cause, Gap};
use crate::json::{At, Node};
use crate::mend::{Mended, mend};
use crate::{Options, Point, Read, Rows, Saved, Usage, predictions, state_json};

/// What a file is, before a reader looks at it.
enum Document<'a> {
    /// One JSON value.
    One(Node<'a>),
    /// One JSON value a line.
    Lines(Vec<Node<'a>>),
}

pub(crate) fn read(bytes: &[u8], file: &str, options: &Options<'_>) -> Result<Read, Problem> {
    let mended = mend(bytes);
    if mended.text.trim().is_empty() {
        return Err(Problem::Empty);
    }
    let document = parse(&mended.text)?;
    if let Document::One(node) = &document
        && state_json::stated_format(node) == Some(state_json::STATE_FORMAT)
    {
        return own_state(bytes, options);
    }
    let mut read = dispatch(&document, file, options)?;
    note_mending(&mended, &mut read.gaps);
    Ok(read)
}

/// One value, or one a line: a first line that is a whole value and is not the last one decides it.
fn parse(text: &str) -> Result<Document<'_>, Problem> {
    let trimmed = text.trim_end();
    let first_line_ends = trimmed.find('\n');
    if let Some(end) = first_line_ends {
        let is_lines = trimmed[..end].trim_start().starts_with('{') && Node::parse(&trimmed[..end], 1).is_ok();
        if is_lines {
            return Node::parse_lines(text).map(Document::Lines);
        }
    }
    Node::parse(text, 1).map(Document::One)
}

fn own_state(bytes: &[u8], options: &Options<'_>) -> Result<Read, Problem> {
    let mut state = crate::OwnedState::from_json(bytes)?;
    if let Some(asked) = options.at {
        return Err(Problem::UnknownStep {
            asked,
            points: "one state, which is its own decision point".to_owned(),
        });
    }
    if let Some(asked) = options.instance {
        return Err(Problem::UnknownInstance {
            asked: asked.to_owned(),
            ids: Vec::new(),
        });
    }
    if let Some(patch) = options.patch {
        state.patch = Some(patch.to_vec());
    }
    if let Some(file) = &options.issue {
        state.issue = Some(crate::issue::of_file(file, None)?);
    }
    if let Some(menu) = &options.menu {
        state.menu = Some(menu.clone());
    }
    let mut gaps = Vec::new();
    for (is_unknown, about) in [
        (state.issue.is_none(), About::Issue),
        (state.patch.is_none(), About::Patch),
    ] {
        if is_unknown {
            gaps.push(Gap::new(about, Cause::Recording, "the state says that it is unknown"));
        }
    }
    Ok(Read {
        saved: Saved {
            base: None,
            complete_history: state.observations.clone(),
        },
        state,
        format: Format::State,
        instance: None,
        rows: Rows::SINGLE,
        point: Point {
            step: None,
            is_default: true,
            points: 0,
            steps: 0,
        },
        usage: Usage::default(),
        totals: crate::RunTotals::default(),
        gaps,
    })
}

fn dispatch(document: &Document<'_>, _file: &str, options: &Options<'_>) -> Result<Read, Problem> {
    let recording = match document {
        Document::Lines(rows) if rows.iter().any(|row| row.has("model_patch")) => predictions::lines(rows, options)?,
        Document::One(node @ Node::Object(_)) if node.has("model_patch") => {
            predictions::lines(std::slice::from_ref(node), options)?
        }
        Document::One(node @ Node::List(items)) if items.iter().any(|row| row.has("model_patch")) => {
            predictions::list(At::root(node), options)?
        }
        _ => {
            return Err(Problem::UnknownFormat {
                found: "JSON of another shape".to_owned(),
            });
        }
    };
    recording.at_point(options)
}

fn note_mending(mended: &Mended<'_>, gaps: &mut Vec<Gap>) {
    for (count, what) in [
        (mended.not_utf8, "bytes that are not UTF-8"),
        (mended.lone_surrogates, "half surrogate pairs"),
    ] {
        if count > 0 {
            let note = format!("{count} {what} in the file, each replaced by U+FFFD");
            gaps.push(Gap::new(About::Observations, Cause::Altered, note));
        }
    }
}
