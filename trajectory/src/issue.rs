//! The issue text: out of a file that the caller names, or cut out of the prompt that an agent was given.

use crate::document::{self, Document};
use crate::error::Problem;
use crate::json::{At, Node};
use crate::parse::WITHHELD;

/// A file that holds the issue: its text, or tasks with `instance_id` and `problem_statement`, as JSON lines, a list,
/// or an object by instance id.
#[derive(Clone, Copy, Debug)]
pub struct IssueFile<'a> {
    /// The file's name, for errors.
    pub name: &'a str,
    /// Everything in the file.
    pub bytes: &'a [u8],
}

/// The issue of `instance` in `file`. Of a task nothing but `problem_statement` is read: it also holds the answer.
///
/// So a file that holds tasks and cannot be read as such is an error, never an issue text.
pub(crate) fn of_file(file: &IssueFile<'_>, instance: Option<&str>) -> Result<Vec<u8>, Problem> {
    let text = document::without_mark(file.bytes).trim_ascii_start();
    if !text.starts_with(b"{") && !text.starts_with(b"[") {
        return Ok(file.bytes.to_vec());
    }
    let document = match document::open(file.bytes) {
        Ok((document, _)) => document,
        Err(problem) if names_task_key(file.bytes) => return Err(problem),
        Err(_) => return Ok(file.bytes.to_vec()),
    };
    let rows = rows(&document);
    if !rows.iter().any(|row| is_task(row.node)) {
        return Ok(file.bytes.to_vec());
    }
    let statement = |row: &At<'_, '_>| row.required("problem_statement", "the issue text")?.bytes();
    // One task alone needs no id to be found by.
    if let ([only], None) = (rows.as_slice(), instance) {
        return statement(only);
    }
    let mut ids = Vec::new();
    for row in &rows {
        let id = row.required("instance_id", "the id of the task")?.text()?;
        if instance == Some(id) {
            return statement(row);
        }
        ids.push(id.to_owned());
    }
    Err(Problem::UnknownInstance { asked: instance.unwrap_or("(none)").to_owned(), ids })
}

/// What may be tasks in a document.
fn rows<'n, 'a>(document: &'n Document<'a>) -> Vec<At<'n, 'a>> {
    match document {
        Document::Lines(rows) => rows.iter().enumerate().map(|(index, row)| At::row(row, index)).collect(),
        Document::One(node) => {
            let root = At::root(node);
            match node {
                Node::List(_) => root.items().map(Iterator::collect).unwrap_or_default(),
                _ if is_task(node) => vec![root],
                _ => root.members().map(|all| all.map(|(_, row)| row).collect()).unwrap_or_default(),
            }
        }
    }
}

/// Whether a row is a task of a data set, or what a grader knows of one.
fn is_task(row: &Node<'_>) -> bool {
    row.has("problem_statement") || WITHHELD.iter().any(|key| row.has(key))
}

/// Whether a file that is no readable JSON names a key of tasks.
fn names_task_key(bytes: &[u8]) -> bool {
    let names = |key: &str| {
        let quoted = format!("\"{key}\"");
        bytes.windows(quoted.len()).any(|window| window == quoted.as_bytes())
    };
    names("problem_statement") || WITHHELD.iter().any(|key| names(key))
}

/// The text between `before` and the last `after` that follows it; `None` unless both stand there.
///
/// The last one, since an issue may itself quote the words that follow it, while the prompt's own stand behind it.
pub(crate) fn between<'t>(prompt: &'t str, before: &str, after: &str) -> Option<&'t str> {
    let start = prompt.find(before)? + before.len();
    let rest = &prompt[start..];
    let end = if after.is_empty() { rest.len() } else { rest.rfind(after)? };
    Some(&rest[..end])
}

/// The text that stands in `prompt` where `template` has one of `slots` (`{{task}}`, `{problem_statement}`).
///
/// The words around the slot are compared up to the next `{`, where the template puts in something else.
pub(crate) fn in_template<'t>(prompt: &'t str, template: &str, slots: &[&str]) -> Option<&'t str> {
    let (slot, at) = slots.iter().find_map(|slot| Some((slot, template.find(slot)?)))?;
    let before = template[..at].rsplit('}').next()?;
    let after = template[at + slot.len()..].split('{').next()?;
    // A template engine drops the template's last newline; a prompt whose words differ was made by another template.
    between(prompt, before, after).or_else(|| between(prompt, before, after.trim_end()))
}

/// Words around the issue in the prompts that agents ship, for recordings that keep no template.
const KNOWN_FRAMES: [(&str, &str); 5] = [
    ("<pr_description>\nConsider the following PR description:\n", "\n</pr_description>"),
    ("<pr_description>\n", "\n</pr_description>"),
    ("<issue_description>\n", "\n</issue_description>"),
    ("\nISSUE:\n", "\n\nINSTRUCTIONS:\n"),
    (
        "Please solve this issue: ",
        "\n\nYou can execute bash commands and edit files to implement the necessary changes.\n",
    ),
];

/// The issue out of the prompt that an agent was given: by its `template`, else by the frames of known agents.
/// `Err` is the whole prompt, where neither fits.
pub(crate) fn of_prompt<'t>(prompt: &'t str, template: Option<&str>) -> Result<&'t str, &'t str> {
    const SLOTS: [&str; 4] = ["{{task}}", "{{ task }}", "{{problem_statement}}", "{problem_statement}"];
    template
        .and_then(|template| in_template(prompt, template, &SLOTS))
        .or_else(|| KNOWN_FRAMES.iter().find_map(|(before, after)| between(prompt, before, after)))
        .ok_or(prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_an_issue_or_a_task_list() {
        let tasks = "{\"instance_id\": \"a\", \"problem_statement\": \"first\", \"gold_patch\": \"secret\"}\n\
                     {\"instance_id\": \"b\", \"problem_statement\": \"second\"}\n";
        let list = format!("[{}]", tasks.trim_end().replace('\n', ",\n"));
        let by_id = "{\"a\": {\"instance_id\": \"a\", \"problem_statement\": \"first\"}}";
        let one = "{\"instance_id\": \"a\",\n \"problem_statement\": \"only\"}";
        let cut = &list[..list.len() - 1];
        #[rustfmt::skip]
        let cases = [ // file, instance, issue or error
            ("plain\r\n",        None,      Ok("plain\r\n")),
            ("",                 Some("a"), Ok("")),
            ("{ not json",       None,      Ok("{ not json")),
            ("[WARN] not json",  None,      Ok("[WARN] not json")),
            ("{\"a\": 1}",       None,      Ok("{\"a\": 1}")),
            ("[1, 2]",           None,      Ok("[1, 2]")),
            ("the \"gold_patch\"", None,    Ok("the \"gold_patch\"")),
            (tasks,              Some("b"), Ok("second")),
            (&list,              Some("b"), Ok("second")),
            (by_id,              Some("a"), Ok("first")),
            (one,                None,      Ok("only")),
            (one,                Some("c"), Err("no row for the instance `c`; the file has a")),
            (tasks,              None,      Err("no row for the instance `(none)`; the file has a, b")),
            // What holds answers is never an issue text.
            (cut,                Some("a"), Err("line 2, column 52 is not readable JSON: expected `,` or `]` after an item; found the end")),
            ("{\"test_patch\": 1", None,    Err("line 1, column 17 is not readable JSON: expected `,` or `}` after a member; found the end")),
            ("{\"test_patch\": 1}", None,   Err("`problem_statement` is missing; expected the issue text")),
            ("[{\"resolved\": true}, {\"a\": 1}]", Some("a"), Err("`[0].instance_id` is missing; expected the id of the task")),
            ("{\"instance_id\": \"a\", \"problem_statement\": 7}", Some("a"), Err("`problem_statement` should be a string; found the number 7")),
        ];
        for (file, instance, expected) in cases {
            let file = IssueFile { name: "issue", bytes: file.as_bytes() };
            let found = of_file(&file, instance).map_err(|it| it.to_string());
            assert_eq!(found, expected.map(|it| it.as_bytes().to_vec()).map_err(str::to_owned), "{file:?}");
        }
        assert_eq!(of_file(&IssueFile { name: "issue", bytes: b"\xff" }, None).unwrap(), b"\xff");
    }

    #[test]
    fn the_slot_of_a_template_is_found_in_its_prompt() {
        #[rustfmt::skip]
        let cases = [ // template, prompt, issue
            ("A:\n{{task}}\nB",            "A:\nit\nB",             Some("it")),
            ("A:\n{{task}}\nB",            "A:\nit\nB\nB",          Some("it\nB")),
            ("{{x}}A:{{task}}B{{y}}",      "cA:itBd",               Some("it")),
            ("A:{{ task }}\n",             "A:it",                  Some("it")),
            ("A:{{task}}B",                "C:itB",                 None),
            ("no slot",                    "no slot",               None),
            ("{{task}}",                   "it",                    Some("it")),
            ("A {problem_statement} B {c}", "A it B d",             Some("it")),
        ];
        for (template, prompt, issue) in cases {
            let slots = ["{{task}}", "{{ task }}", "{problem_statement}"];
            assert_eq!(in_template(prompt, template, &slots), issue, "{template}");
        }
    }
}
