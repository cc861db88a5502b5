//! The test functions of a file, found by parsing it. Nothing is imported or run.

use serde::Serialize;
use tree_sitter::{Node, Parser};

use crate::menu::Project;
use crate::restore::path::TreePath;

/// Deepest nesting of statements that is looked into.
const DEPTH_MAX: usize = 32;

/// A test function: of a module, or of a class of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct TestFunction {
    /// The file that it is in.
    pub file: TreePath,
    /// Its class, if it has one.
    pub class: Option<String>,
    /// Its name.
    pub name: String,
}

/// The test functions of `text`, in its order, each once.
///
/// - A function at the top of the module named `test*` (`SymPy`: `test_*`); none for Django.
/// - A method named `test*` of a class at the top of the module that is a test class: for pytest, one named `Test*`
///   without an `__init__`; for pytest and Django, one with a base that is a test case, which is a base whose last name
///   contains `TestCase` or ends in `Test` or `Tests`, or a class of this file that is one. None for `SymPy`.
/// - `if`, `try` and `with` at the top are looked into; other functions are not.
/// - What a decorator named `skip`, `slow`, `XFAIL` or `SKIP` stands above is left out, alone or with its class: it
///   would say nothing.
///
/// A file that Python could not parse gives what still can be recognized, which may be nothing.
#[must_use]
pub fn test_functions(project: Project, file: &TreePath, text: &[u8]) -> Vec<TestFunction> {
    let mut parser = Parser::new();
    if parser.set_language(&tree_sitter_python::LANGUAGE.into()).is_err() {
        return Vec::new();
    }
    let Some(tree) = parser.parse(text, None) else { return Vec::new() };
    let mut module = Module { project, file, text, test_cases: Vec::new(), found: Vec::new() };
    module.block(tree.root_node(), DEPTH_MAX);
    module.found
}

struct Module<'a> {
    project: Project,
    file: &'a TreePath,
    text: &'a [u8],
    /// Classes of this file that are test cases.
    test_cases: Vec<String>,
    found: Vec<TestFunction>,
}

impl<'a> Module<'a> {
    /// The statements of the module, or of a block at its top.
    fn block(&mut self, block: Node<'_>, depth: usize) {
        if depth == 0 {
            return;
        }
        let mut cursor = block.walk();
        for statement in block.named_children(&mut cursor) {
            match statement.kind() {
                "function_definition" => self.function(statement, None),
                "class_definition" => self.class(statement),
                "decorated_definition" if !self.skipped(statement) => {
                    match statement.child_by_field_name("definition") {
                        Some(it) if it.kind() == "class_definition" => self.class(it),
                        Some(it) => self.function(it, None),
                        None => {}
                    }
                }
                "if_statement" | "try_statement" | "with_statement" | "block" | "else_clause" | "elif_clause"
                | "except_clause" | "finally_clause" => self.block(statement, depth - 1),
                _ => {}
            }
        }
    }

    fn class(&mut self, class: Node<'_>) {
        let Some(name) = class.child_by_field_name("name").and_then(|it| self.word(it)) else { return };
        let test_case = self.is_test_case(class);
        if test_case {
            self.test_cases.push(name.to_owned());
        }
        let Some(body) = class.child_by_field_name("body") else { return };
        let plain = self.project == Project::Pytest && name.starts_with("Test") && !self.has_init(body);
        if self.project == Project::Sympy || !(test_case || plain) {
            return;
        }
        let mut cursor = body.walk();
        for statement in body.named_children(&mut cursor) {
            match statement.kind() {
                "function_definition" => self.function(statement, Some(name)),
                "decorated_definition" if !self.skipped(statement) => {
                    let method = statement.child_by_field_name("definition");
                    if let Some(method) = method.filter(|it| it.kind() == "function_definition") {
                        self.function(method, Some(name));
                    }
                }
                _ => {}
            }
        }
    }

    fn function(&mut self, function: Node<'_>, class: Option<&str>) {
        let Some(name) = function.child_by_field_name("name").and_then(|it| self.word(it)) else { return };
        let prefix = if self.project == Project::Sympy { "test_" } else { "test" };
        let module_alone = class.is_none() && self.project == Project::Django;
        if !name.starts_with(prefix) || module_alone {
            return;
        }
        let test = TestFunction { file: self.file.clone(), class: class.map(str::to_owned), name: name.to_owned() };
        if !self.found.contains(&test) {
            self.found.push(test);
        }
    }

    fn is_test_case(&self, class: Node<'_>) -> bool {
        let Some(bases) = class.child_by_field_name("superclasses") else { return false };
        let mut cursor = bases.walk();
        bases.named_children(&mut cursor).filter_map(|it| self.last_name(it)).any(|base| {
            base.contains("TestCase")
                || base.ends_with("Test")
                || base.ends_with("Tests")
                || self.test_cases.iter().any(|it| it == base)
        })
    }

    fn has_init(&self, body: Node<'_>) -> bool {
        let mut cursor = body.walk();
        body.named_children(&mut cursor).any(|it| {
            it.kind() == "function_definition"
                && it.child_by_field_name("name").and_then(|it| self.word(it)) == Some("__init__")
        })
    }

    /// Whether a decorator says that the test is not run by default.
    fn skipped(&self, decorated: Node<'_>) -> bool {
        let mut cursor = decorated.walk();
        let decorators = decorated.named_children(&mut cursor).filter(|it| it.kind() == "decorator");
        decorators
            .filter_map(|it| it.named_child(0))
            .any(|it| matches!(self.last_name(it), Some("skip" | "slow" | "XFAIL" | "SKIP")))
    }

    /// `c` of `a.b.c` and of `a.b.c(...)`.
    fn last_name(&self, expression: Node<'_>) -> Option<&'a str> {
        match expression.kind() {
            "identifier" => self.word(expression),
            "attribute" => self.word(expression.child_by_field_name("attribute")?),
            "call" => {
                let function = expression.child_by_field_name("function")?;
                // One level: a call of a call names nothing.
                match function.kind() {
                    "identifier" => self.word(function),
                    "attribute" => self.word(function.child_by_field_name("attribute")?),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// A name as text.
    fn word(&self, node: Node<'_>) -> Option<&'a str> {
        std::str::from_utf8(self.text.get(node.byte_range())?).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(project: Project, text: &str) -> Vec<String> {
        let file = TreePath::new("t.py").unwrap();
        let of = |it: TestFunction| it.class.map_or(String::new(), |it| it + ".") + &it.name;
        test_functions(project, &file, text.as_bytes()).into_iter().map(of).collect()
    }

    const TEXT: &str = r#"
import unittest
"""def test_in_a_string(): pass"""
def test_plain(): pass
async def test_async(): pass
def testing_too(): pass
def helper():
    def test_nested(): pass
@pytest.mark.parametrize("a b", [1])
def test_marked(): pass
@pytest.mark.skip(reason="x")
def test_skipped(): pass
@slow
def test_slow(): pass
@XFAIL
def test_xfail(): pass
if True:
    def test_in_if(): pass
else:
    def test_in_else(): pass
try:
    def test_in_try(): pass
except ImportError:
    pass
class TestPlain:
    def test_m(self): pass
    def helper(self): pass
    @staticmethod
    def test_static(): pass
    class TestInner:
        def test_inner(self): pass
class TestWithInit:
    def __init__(self): pass
    def test_no(self): pass
class Suite(unittest.TestCase):
    def test_u(self): pass
    def test_u(self): pass
class Derived(Suite):
    def test_d(self): pass
class Mixin:
    def test_mixin(self): pass
@unittest.skip("x")
class Gone(unittest.TestCase):
    def test_gone(self): pass
class Live(Mixin, SimpleTestCase, metaclass=M):
    @override_settings(A=1)
    def test_l(self): pass
class Other(FormsTests):
    def test_o(self): pass
def test_plain(): pass
"#;

    #[test]
    fn each_project_s_test_functions_are_found_in_the_order_of_the_text() {
        #[rustfmt::skip]
        let cases = [
            (Project::Pytest, vec!["test_plain", "test_async", "testing_too", "test_marked", "test_in_if", "test_in_else", "test_in_try",
                "TestPlain.test_m", "TestPlain.test_static", "Suite.test_u", "Derived.test_d", "Live.test_l", "Other.test_o"]),
            (Project::Django, vec!["Suite.test_u", "Derived.test_d", "Live.test_l", "Other.test_o"]),
            (Project::Sympy, vec!["test_plain", "test_async", "test_marked", "test_in_if", "test_in_else", "test_in_try"]),
        ];
        for (project, expected) in cases {
            assert_eq!(found(project, TEXT), expected, "{project}");
        }
    }

    #[test]
    fn a_file_that_is_no_python_gives_what_is_recognized() {
        assert_eq!(found(Project::Pytest, ""), Vec::<String>::new());
        assert_eq!(found(Project::Pytest, "def test_a(:\n  pass\n\ndef test_b(): pass\n").last().unwrap(), "test_b");
        assert_eq!(found(Project::Pytest, &"if x:\n ".repeat(5_000)), Vec::<String>::new());
        assert_eq!(found(Project::Pytest, &"(".repeat(100_000)), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(pieces in proptest::collection::vec(prop_oneof![
            Just("def test_a():\n".to_owned()), Just("class TestA(".to_owned()), Just("    ".to_owned()), Just("@skip\n".to_owned()),
            Just("'''".to_owned()), Just("if x:\n".to_owned()), ".{0,5}",
        ], 0..20)) {
            for project in [Project::Pytest, Project::Django, Project::Sympy] {
                drop(found(project, &pieces.concat()));
            }
        }
    }
}
