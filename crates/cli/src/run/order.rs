//! The order of `LD_PRELOAD`: airdma first, but for libraries that must come before it. A sanitizer's runtime refuses to run behind
//! another library, and a library that wraps verbs sees no call behind the one that it wraps.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::elf::Symbols;

/// Beginnings of the names of libraries that must come first.
const FIRST: [&str; 6] = [
    "libasan.so",
    "libtsan.so",
    "liblsan.so",
    "libhwasan.so",
    "libmsan.so",
    "libclang_rt.",
];

/// The value of `LD_PRELOAD` in the order that works, and which names come before airdma. `needed`: what the program links.
pub fn arranged(value: &OsStr, needed: &[String]) -> (OsString, Vec<String>) {
    let separators = |byte: &u8| matches!(byte, b':' | b' ');
    let entries = value.as_bytes().split(separators);
    let entries: Vec<&[u8]> = entries.filter(|entry| !entry.is_empty()).collect();
    let Some((ours, others)) = entries.split_first() else {
        return (value.to_owned(), Vec::new());
    };
    let linked = needed.iter().filter(|name| {
        let is_there = others
            .iter()
            .any(|entry| file_name(entry) == name.as_bytes());
        is_sanitizer(name.as_bytes()) && !is_there
    });
    let is_first = |entry: &&&[u8]| is_sanitizer(file_name(entry)) || wraps_verbs(entry);
    let (mut first, mut rest): (Vec<&[u8]>, Vec<&[u8]>) = (Vec::new(), vec![ours]);
    first.extend(linked.map(|name| name.as_bytes()));
    first.extend(others.iter().filter(is_first).copied());
    rest.extend(others.iter().filter(|entry| !is_first(entry)).copied());
    let names = first
        .iter()
        .map(|entry| String::from_utf8_lossy(entry).into_owned());
    let names = names.collect();
    first.append(&mut rest);
    (OsString::from_vec(first.join(&b':')), names)
}

fn file_name(entry: &[u8]) -> &[u8] {
    entry.rsplit(|byte| *byte == b'/').next().unwrap_or(entry)
}

fn is_sanitizer(name: &[u8]) -> bool {
    FIRST.iter().any(|first| name.starts_with(first.as_bytes()))
}

/// Whether a library has functions of libibverbs or librdmacm, and is not one of them, nor ours.
fn wraps_verbs(entry: &[u8]) -> bool {
    let own = ["libibverbs", "librdmacm", "libairdma"];
    if own
        .iter()
        .any(|own| file_name(entry).starts_with(own.as_bytes()))
    {
        return false;
    }
    let symbols = Symbols::read(Path::new(OsStr::from_bytes(entry))).unwrap_or_default();
    let is_verb = |name: &str| name.starts_with("ibv_") || name.starts_with("rdma_");
    symbols.exports.iter().any(|symbol| is_verb(&symbol.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(value: &str, needed: &[&str]) -> String {
        let needed: Vec<String> = needed.iter().map(|name| (*name).to_owned()).collect();
        arranged(OsStr::new(value), &needed)
            .0
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn a_sanitizer_comes_first_and_other_libraries_stay_behind() {
        let alone = "/lib/libairdma.so";
        assert_eq!(order(alone, &["libc.so.6"]), alone);
        assert_eq!(
            order(alone, &["libasan.so.8", "libc.so.6"]),
            "libasan.so.8:/lib/libairdma.so"
        );
        let given = "/lib/libairdma.so:/usr/lib/libasan.so.8:/my/libhook.so";
        let wanted = "/usr/lib/libasan.so.8:/lib/libairdma.so:/my/libhook.so";
        assert_eq!(order(given, &[]), wanted);
        assert_eq!(order(given, &["libasan.so.8"]), wanted);
        assert_eq!(order("", &[]), "");
    }
}
