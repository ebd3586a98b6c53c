//! Who may import whom. The table is that of `ARCHITECTURE.md`.

#![expect(clippy::unwrap_used, reason = "a test that cannot run has failed")]

use std::path::{Path, PathBuf};

/// What the files of a module must not name.
struct Rule {
    /// The module: a folder or file below `src`.
    module: &'static str,
    /// What its lines must not contain.
    forbidden: &'static [&'static str],
}

const RULES: &[Rule] = &[
    Rule {
        module: "domain",
        forbidden: &[
            "tokio",
            "tonic",
            "prost",
            "rusqlite",
            "crate::storage",
            "crate::service",
            "crate::rpc",
            "crate::server",
            "crate::proto",
            "crate::cli",
            "crate::config",
        ],
    },
    Rule {
        module: "storage",
        forbidden: &[
            "tonic",
            "prost",
            "clap",
            "crate::service",
            "crate::rpc",
            "crate::server",
            "crate::proto",
            "crate::cli",
            "crate::config",
        ],
    },
    Rule {
        module: "storage/memory.rs",
        forbidden: &["crate::storage::sqlite", "super::sqlite", "rusqlite"],
    },
    Rule {
        module: "storage/sqlite",
        forbidden: &[
            "crate::storage::memory",
            "super::memory",
            "super::super::memory",
        ],
    },
    Rule {
        module: "service",
        forbidden: &[
            "tonic",
            "prost",
            "rusqlite",
            "crate::storage::sqlite",
            "crate::storage::memory",
            "crate::rpc",
            "crate::server",
            "crate::proto",
            "crate::cli",
            "crate::config",
        ],
    },
    Rule {
        module: "rpc",
        forbidden: &[
            "rusqlite",
            "crate::storage",
            "crate::server",
            "crate::cli",
            "crate::config",
        ],
    },
];

/// The lines of Rust code that a rule forbids: comments do not import anything.
fn breaches<'a>(rule: &Rule, text: &'a str) -> Vec<&'a str> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.filter(|line| rule.forbidden.iter().any(|name| names(line, name)))
        .collect()
}

/// Whether a line names a crate or path, and not only a longer word with it.
fn names(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line.get(..at).and_then(|part| part.chars().next_back());
        let after = line
            .get(at + name.len()..)
            .and_then(|part| part.chars().next());
        let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        // A crate is named before `::`; a path of ours may end there.
        let is_use = name.contains("::")
            || line
                .get(at + name.len()..)
                .is_some_and(|rest| rest.starts_with("::"));
        !word(before) && !word(after) && is_use
    })
}

fn files(path: &Path, into: &mut Vec<PathBuf>) {
    if path.is_file() {
        into.push(path.to_owned());
        return;
    }
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
            files(&path, into);
        }
    }
}

#[test]
fn no_module_imports_what_it_must_not() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for rule in RULES {
        let mut paths = Vec::new();
        files(&source.join(rule.module), &mut paths);
        assert!(!paths.is_empty(), "{} has no files", rule.module);
        for path in paths {
            let text = std::fs::read_to_string(&path).unwrap();
            for line in breaches(rule, &text) {
                found.push(format!("{}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "forbidden imports:\n{}", found.join("\n"));
}

#[test]
fn a_planted_import_is_caught() {
    let rule = RULES.iter().find(|rule| rule.module == "domain").unwrap();
    assert_eq!(breaches(rule, "use crate::storage::Key;").len(), 1);
    assert_eq!(breaches(rule, "let x = tokio::spawn(y);").len(), 1);
    assert!(breaches(rule, "// see crate::storage::Key").is_empty());
    assert!(breaches(rule, "use crate::domain::storage_of;").is_empty());
}
