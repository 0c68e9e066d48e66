//! The built library exports every symbol that programs import.

#![allow(clippy::unwrap_used)]

mod library;

use std::collections::BTreeSet;
use std::process::Command;

/// The names in `symbols.txt`.
fn wanted() -> Vec<&'static str> {
    include_str!("symbols.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect()
}

/// The names in `hooks.txt`.
fn hooks() -> impl Iterator<Item = &'static str> {
    include_str!("hooks.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
}

/// The functions that a shared object defines, by `nm -D`.
fn exported() -> BTreeSet<String> {
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library::path())
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_symbol_that_programs_import_is_exported() {
    let exported = exported();
    let wanted = wanted();
    assert!(wanted.len() >= 64, "the list is complete");
    let missing: Vec<_> = wanted
        .iter()
        .filter(|name| !exported.contains(**name))
        .collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn symbols_carry_no_version_and_nothing_else_is_exported() {
    let wanted: BTreeSet<String> = wanted()
        .into_iter()
        .chain(hooks())
        .map(str::to_owned)
        .collect();
    let surplus: Vec<_> = exported().difference(&wanted).cloned().collect();
    assert!(surplus.is_empty(), "in neither list: {surplus:?}");
}

#[test]
fn every_hook_is_exported() {
    let exported = exported();
    let missing: Vec<_> = hooks().filter(|name| !exported.contains(*name)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn the_drop_in_directory_exports_what_is_there() {
    let exported = exported();
    let stubs = include_str!("../dropin/stubs.c");
    let (mut verbs, mut private) = (0, 0);
    for line in include_str!("../dropin/versions.txt").lines() {
        let Some((node, name)) = line.split_once(' ').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let is_stub = stubs.contains(&format!("({name})")) || stubs.contains(&format!(" {name};"));
        assert!(exported.contains(name) || is_stub, "{name} is nowhere");
        if node.contains("PRIVATE") {
            private += 1;
        } else {
            assert!(!is_stub, "{name} is a stub");
            verbs += 1;
        }
    }
    assert!(verbs >= 70 && private >= 60, "the lists are complete");
}
