//! What the message formats of chat models have in common.

use crate::error::Problem;
use crate::json::{At, Node};

/// The text of a message's `content`: a string, or parts of which only those of text count; nothing where null.
pub(crate) fn content_text(message: At<'_, '_>, key: &'static str) -> Result<String, Problem> {
    let Some(content) = message.field(key)? else {
        return Ok(String::new());
    };
    match content.node {
        Node::Text(text) => Ok(text.clone().into_owned()),
        Node::List(_) => {
            let mut all = String::new();
            for part in content.items()? {
                match part.node {
                    Node::Text(text) => all.push_str(text),
                    _ => all.push_str(part.text_at(&["text"])?.unwrap_or_default()),
                }
            }
            Ok(all)
        }
        // A lone part, as some recorders write it.
        Node::Object(_) => Ok(content.text_at(&["text"])?.unwrap_or_default().to_owned()),
        _ => Err(content.wrong("a string, or an array of parts")),
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
