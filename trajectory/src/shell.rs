//! A shell command taken apart as far as its kind needs: simple commands, their words, whether one writes a file.
//!
//! It runs nothing and expands nothing. What it does not understand it reports as words.

/// A command longer than this is judged by its head: no kind needs more, and the work stays bounded.
const SCANNED_BYTES_MAX: usize = 64 * 1024;

/// One simple command of a list or pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Simple {
    /// The words, without quotes. Leading assignments and wrappers (`sudo`, `timeout 5`, ...) are dropped.
    pub(crate) words: Vec<String>,
    /// Whether its output goes into a file other than `/dev/null`.
    pub(crate) writes_file: bool,
    /// What joins it to the command before: `&&`, `||`, `;`, `|`, `&`; nothing for the first.
    pub(crate) joined_by: &'static str,
}

impl Simple {
    /// The program's name without its folder.
    pub(crate) fn program(&self) -> &str {
        self.words.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word))
    }

    /// Word `index`, or nothing.
    pub(crate) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }
}

/// The simple commands of `command`, in order.
pub(crate) fn simple_commands(command: &str) -> Vec<Simple> {
    let mut end = command.len().min(SCANNED_BYTES_MAX);
    while !command.is_char_boundary(end) {
        end -= 1;
    }
    let mut scan = Scan { rest: &command[..end], ..Scan::default() };
    scan.run();
    scan.commands
}

#[derive(Default)]
struct Scan<'c> {
    rest: &'c str,
    commands: Vec<Simple>,
    current: Simple,
    word: String,
    /// Also true for `''`, a word of no letters.
    word_started: bool,
    /// The next word is where a redirection goes.
    redirects: bool,
    /// Ends of the here-documents that start at the next newline.
    here_documents: Vec<String>,
}

impl Scan<'_> {
    fn run(&mut self) {
        while let Some(character) = self.rest.chars().next() {
            self.rest = &self.rest[character.len_utf8()..];
            match character {
                '\'' => self.quoted('\''),
                '"' => self.quoted('"'),
                '\\' => {
                    if let Some(next) = self.rest.chars().next() {
                        self.rest = &self.rest[next.len_utf8()..];
                        if next != '\n' {
                            self.push(next);
                        }
                    }
                }
                '#' if !self.word_started => self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..],
                '<' if self.rest.starts_with("<<") => {
                    self.rest = &self.rest[2..];
                    self.end_word();
                }
                '<' if self.rest.starts_with('<') => self.here_document(),
                '>' => self.redirection(),
                '\n' => {
                    self.end_command(";");
                    self.skip_here_documents();
                }
                ';' | '(' | ')' => self.end_command(";"),
                '&' if self.rest.starts_with('&') => self.double("&&"),
                '|' if self.rest.starts_with('|') => self.double("||"),
                '&' => self.end_command("&"),
                '|' => self.end_command("|"),
                white if white.is_whitespace() => self.end_word(),
                other => self.push(other),
            }
        }
        self.end_command("");
    }

    fn push(&mut self, character: char) {
        self.word.push(character);
        self.word_started = true;
    }

    fn quoted(&mut self, quote: char) {
        self.word_started = true;
        let mut escaped = false;
        for (at, character) in self.rest.char_indices() {
            if escaped {
                escaped = false;
            } else if character == '\\' && quote == '"' {
                escaped = true;
                continue;
            } else if character == quote {
                self.rest = &self.rest[at + 1..];
                return;
            }
            self.word.push(character);
        }
        self.rest = "";
    }

    fn double(&mut self, operator: &'static str) {
        self.rest = &self.rest[1..];
        self.end_command(operator);
    }

    fn redirection(&mut self) {
        // `2>` and `1>`: the digit is a descriptor, not an argument.
        if self.word.bytes().all(|byte| byte.is_ascii_digit()) {
            self.word.clear();
            self.word_started = false;
        }
        self.end_word();
        self.rest = self.rest.trim_start_matches(['>', '|']);
        if let Some(after) = self.rest.strip_prefix('&') {
            // `>&2`, `2>&1`: to a descriptor.
            self.rest = after.trim_start_matches(|it: char| it.is_ascii_digit() || it == '-');
        } else {
            self.redirects = true;
        }
    }

    fn here_document(&mut self) {
        self.end_word();
        self.rest = self.rest[1..].trim_start_matches('-').trim_start_matches([' ', '\t']);
        let end = self.rest.find(|it: char| it.is_whitespace() || ";|&<>()".contains(it)).unwrap_or(self.rest.len());
        self.here_documents.push(self.rest[..end].replace(['\'', '"', '\\'], ""));
        self.rest = &self.rest[end..];
    }

    fn skip_here_documents(&mut self) {
        for delimiter in std::mem::take(&mut self.here_documents) {
            loop {
                let (line, after) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
                self.rest = after;
                if line.trim() == delimiter || after.is_empty() {
                    break;
                }
            }
        }
    }

    fn end_word(&mut self) {
        if !std::mem::take(&mut self.word_started) {
            return;
        }
        let word = std::mem::take(&mut self.word);
        if std::mem::take(&mut self.redirects) {
            self.current.writes_file |= word != "/dev/null";
        } else {
            self.current.words.push(word);
        }
    }

    fn end_command(&mut self, next: &'static str) {
        self.end_word();
        self.redirects = false;
        let mut done = std::mem::take(&mut self.current);
        strip_wrappers(&mut done.words);
        if done.words.is_empty() && !done.writes_file {
            // Nothing between two operators: the later one joins, unless it is a mere end of line.
            self.current.joined_by = if next == ";" && !done.joined_by.is_empty() { done.joined_by } else { next };
        } else {
            self.current.joined_by = next;
            self.commands.push(done);
        }
        if self.commands.is_empty() {
            self.current.joined_by = "";
        }
    }
}

/// Drops `A=b`, `sudo`, `env`, `time`, `nohup`, `xargs`, `timeout 5`, with their options, from the front.
fn strip_wrappers(words: &mut Vec<String>) {
    loop {
        let Some(first) = words.first() else { return };
        let is_assignment = first.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        });
        let has_duration = first == "timeout";
        if is_assignment {
            words.remove(0);
        } else if has_duration || matches!(first.as_str(), "sudo" | "env" | "time" | "nohup" | "xargs" | "command") {
            words.remove(0);
            while words.first().is_some_and(|word| word.starts_with('-')) {
                words.remove(0);
            }
            if has_duration && !words.is_empty() {
                words.remove(0);
            }
        } else {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(command: &str) -> String {
        let show =
            |it: &Simple| format!("{}[{}]{}", it.joined_by, it.words.join(" "), if it.writes_file { ">" } else { "" });
        simple_commands(command).iter().map(show).collect()
    }

    #[test]
    fn commands_are_taken_apart() {
        #[rustfmt::skip]
        let cases = [
            ("",                                        ""),
            ("ls -la",                                  "[ls -la]"),
            ("cd /x && git diff | head -5; echo \"a;b\"", "[cd /x]&&[git diff]|[head -5];[echo a;b]"),
            ("a || b & c",                              "[a]||[b]&[c]"),
            ("cat > f.py <<'EOF'\nrm -rf /\nEOF\nls",    "[cat]>;[ls]"),
            ("cat <<EOF > f.py\npytest\nEOF",           "[cat]>"),
            ("python - <<-END\npytest\n\tEND\nls",      "[python -];[ls]"),
            ("ls 2>/dev/null",                          "[ls]"),
            ("ls 2>&1 | tail",                          "[ls]|[tail]"),
            ("ls >>log 2>&1",                           "[ls]>"),
            ("A=1 B='x y' sudo -E timeout -k 1 5 ls",   "[5 ls]"),
            ("timeout 5 pytest -q",                     "[pytest -q]"),
            ("find . | xargs -0 sed -i s/a/b/",         "[find .]|[sed -i s/a/b/]"),
            ("echo a \\\n b",                           "[echo a b]"),
            ("echo 'it''s' \"q\\\"q\" e\\ f ''",        "[echo its q\"q e f ]"),
            ("(cd a; ls)\n\n# comment > x\nls",         "[cd a];[ls];[ls]"),
            ("ls &&\n pwd",                             "[ls]&&[pwd]"),
            ("cat <<< word",                            "[cat word]"),
            ("echo 'open",                              "[echo open]"),
            ("cat <<EOF\nnever ended",                  "[cat]"),
            ("> f",                                     "[]>"),
        ];
        for (command, expected) in cases {
            assert_eq!(shown(command), expected, "{command:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken_apart(command in "[a-z'\"\\\\ <>&|;()#\n$=é-]{0,60}") {
            for simple in simple_commands(&command) {
                prop_assert!(simple.writes_file || !simple.words.is_empty());
            }
        }
    }
}
