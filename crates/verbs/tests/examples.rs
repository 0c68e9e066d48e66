//! The programs of `examples/`, as they are and under valgrind.

#![allow(clippy::unwrap_used)]

mod library;
mod program;

use program::Under;
use std::path::{Path, PathBuf};

/// The sources, by name.
fn sources() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut sources: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    assert!(sources.len() > 10);
    sources
}

#[test]
fn each_example_shows_what_it_says() {
    for source in sources() {
        let Some(out) = program::output(&source, "", Under::Nothing) else {
            return;
        };
        assert!(out.lines().count() > 1, "{}: {out}", source.display());
    }
}

#[test]
fn the_examples_lose_no_memory_and_touch_none_that_is_not_there() {
    for source in sources() {
        if program::output(&source, "", Under::Valgrind).is_none() {
            return;
        }
    }
}

#[test]
fn the_page_of_the_examples_names_each() {
    let page = include_str!("../../../examples/README.md");
    for source in sources() {
        let name = source.file_name().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("[{name}]({name})")), "{name}");
    }
}
