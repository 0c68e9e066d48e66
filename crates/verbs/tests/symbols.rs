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

/// Node and name of each line of `versions.txt`.
fn versions() -> Vec<(&'static str, &'static str)> {
    include_str!("../dropin/versions.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .collect()
}

#[test]
fn the_drop_in_directory_exports_what_is_there() {
    let exported = exported();
    let stubs = concat!(
        include_str!("../dropin/stubs.c"),
        include_str!("../dropin/rsockets.c")
    );
    let (mut verbs, mut cm, mut stubbed) = (0, 0, 0);
    for (node, name) in versions() {
        let is_stub = [
            format!("({name})"),
            format!(" {name};"),
            format!(" {name}("),
        ]
        .iter()
        .any(|definition| stubs.contains(definition));
        assert!(exported.contains(name) != is_stub, "{name} once: {is_stub}");
        let is_rsocket = node == "RDMACM_1.0" && !name.starts_with("rdma_");
        if is_stub {
            assert!(node == "IBVERBS_PRIVATE_34" || is_rsocket, "{name}");
            stubbed += 1;
        } else if node.starts_with("RDMACM_") {
            cm += 1;
        } else {
            verbs += 1;
        }
    }
    assert!(
        verbs >= 70 && cm == 41 && stubbed >= 87,
        "the lists are complete: {verbs} {cm} {stubbed}"
    );
}

#[test]
fn every_symbol_has_a_version_in_the_drop_in_directory() {
    let versioned: BTreeSet<&str> = versions().into_iter().map(|(_, name)| name).collect();
    let missing: Vec<_> = wanted()
        .into_iter()
        .filter(|name| !versioned.contains(name))
        .collect();
    assert!(missing.is_empty(), "without a version: {missing:?}");
}
