//! What the message formats of chat models have in common.

use crate::error::Problem;
use crate::json::{At, Node};
use crate::kept::{Keeper, Kept};

/// The text of a message's `content`: a string, or parts of which only those of text count; nothing where null.
pub(crate) fn content_text(message: At<'_, '_>, key: &'static str) -> Result<String, Problem> {
    let mut all = String::new();
    content_pieces(message, key, &mut |piece| all.push_str(piece))?;
    Ok(all)
}

/// As much of the same text as a state keeps.
pub(crate) fn content_kept(message: At<'_, '_>, key: &'static str) -> Result<Kept, Problem> {
    let mut keeper = Keeper::default();
    content_pieces(message, key, &mut |piece| keeper.push(piece.as_bytes()))?;
    Ok(keeper.finish())
}

fn content_pieces(message: At<'_, '_>, key: &'static str, push: &mut dyn FnMut(&str)) -> Result<(), Problem> {
    let Some(content) = message.field(key)? else {
        return Ok(());
    };
    match content.node {
        Node::Text(text) => text.pieces(push),
        Node::List(_) => {
            for part in content.items()? {
                match part.node {
                    Node::Text(text) => text.pieces(push),
                    _ => part_pieces(part, push)?,
                }
            }
        }
        // A lone part, as some recorders write it.
        Node::Object(_) => part_pieces(content, push)?,
        _ => return Err(content.wrong("a string, or an array of parts")),
    }
    Ok(())
}

fn part_pieces(part: At<'_, '_>, push: &mut dyn FnMut(&str)) -> Result<(), Problem> {
    match part.field("text")? {
        Some(text) => text.pieces(push),
        None => Ok(()),
    }
}

/// A tool call as one line: a shell's command as it is, any other as its name and its arguments.
pub(crate) fn shown_call(tool: &str, arguments: Option<At<'_, '_>>) -> Result<Vec<u8>, Problem> {
    let command = match arguments {
        Some(arguments) if crate::reason::is_shell(tool) && matches!(arguments.node, Node::Object(_)) => {
            arguments.text_at(&["command"])?
        }
        _ => None,
    };
    Ok(match (command, arguments) {
        (Some(command), _) => command.as_bytes().to_vec(),
        (None, Some(arguments)) => format!("{tool} {}", arguments.node).into_bytes(),
        (None, None) => tool.as_bytes().to_vec(),
    })
}
