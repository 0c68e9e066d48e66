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
        // A name that both have would not link.
        let is_stub = !exported.contains(name);
        let registers = name.replace("verbs_register_driver_", "REGISTERS(") + ")\n";
        let definitions = [
            registers,
            format!("({name})"),
            format!(" stub_{name};"),
            format!(" {name}("),
        ];
        let is_defined = definitions.iter().any(|text| stubs.contains(text.as_str()));
        assert!(!is_stub || is_defined, "{name}");
        let is_rsocket = node.starts_with("RDMACM_") && !name.starts_with("rdma_");
        if is_stub {
            assert!(node.starts_with("IBVERBS_PRIVATE_") || is_rsocket, "{name}");
            stubbed += 1;
        } else if node.starts_with("RDMACM_") {
            cm += 1;
        } else {
            verbs += 1;
        }
    }
    assert!(
        verbs >= 91 && cm == 44 && stubbed >= 126,
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

/// Node and name of each symbol of the newest rdma-core that this library knows.
fn newest() -> Vec<(&'static str, &'static str)> {
    include_str!("rdma-core-65.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .collect()
}

#[test]
fn every_symbol_of_the_newest_rdma_core_is_in_the_preload() {
    let exported = exported();
    // What is left is rdma-core's own: what serves its hardware providers, and its rsockets.
    let is_ours = |node: &str, name: &str| {
        name.starts_with("rdma_")
            || (node.starts_with("IBVERBS_") && !node.starts_with("IBVERBS_PRIVATE_"))
    };
    let newest = newest();
    assert!(newest.len() >= 250, "the list is complete");
    let missing: Vec<_> = newest
        .iter()
        .filter(|(node, name)| is_ours(node, name) && !exported.contains(*name))
        .collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}

#[test]
fn every_symbol_of_the_newest_rdma_core_is_in_the_drop_in() {
    // The private names of all releases stand with one node; stubs.c gives each the others.
    let there: BTreeSet<_> = versions()
        .into_iter()
        .map(|(node, name)| {
            (
                node.replace("IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_65"),
                name,
            )
        })
        .collect();
    let missing: Vec<_> = newest()
        .into_iter()
        .filter(|(node, name)| !there.contains(&((*node).to_owned(), *name)))
        .collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
}
