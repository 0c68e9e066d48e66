//! The order of `LD_PRELOAD`: airdma first, but for libraries of the user's that must come before
//! it. A sanitizer's runtime refuses to run behind another library, and a library that wraps verbs
//! sees no call behind the one that it wraps.
//!
//! A program that links a sanitizer's runtime itself needs no preload of it, which its children
//! would get as well: AddressSanitizer is told not to check the order, and the other runtimes do
//! not check it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::elf::Symbols;

/// Beginnings of the names of sanitizers' runtimes.
const SANITIZERS: [&str; 6] = [
    "libasan.so",
    "libtsan.so",
    "liblsan.so",
    "libhwasan.so",
    "libmsan.so",
    "libclang_rt.",
];

/// Beginnings of the names of AddressSanitizer's: GCC's, and clang's with `-shared-libsan`.
const ADDRESS: [&str; 2] = ["libasan.so", "libclang_rt.asan"];

/// The variable that AddressSanitizer reads.
pub const ASAN_OPTIONS: &str = "ASAN_OPTIONS";

/// The value of `LD_PRELOAD` in the order that works, and which names come before airdma. `find`:
/// where the loader finds a library by its short name.
pub fn arranged(value: &OsStr, find: impl Fn(&str) -> Option<PathBuf>) -> (OsString, Vec<String>) {
    let separators = |byte: &u8| matches!(byte, b':' | b' ');
    let entries = value.as_bytes().split(separators);
    let entries: Vec<&[u8]> = entries.filter(|entry| !entry.is_empty()).collect();
    let Some((ours, others)) = entries.split_first() else {
        return (value.to_owned(), Vec::new());
    };
    let (mut first, mut rest): (Vec<&[u8]>, Vec<&[u8]>) = others
        .iter()
        .copied()
        .partition(|entry| is_sanitizer(file_name(entry)) || wraps_verbs(entry, &find));
    let names = first
        .iter()
        .map(|entry| String::from_utf8_lossy(entry).into_owned());
    let names = names.collect();
    first.push(ours);
    first.append(&mut rest);
    (OsString::from_vec(first.join(&b':')), names)
}

/// Whether a library is AddressSanitizer's runtime, which ends programs in which another library
/// comes first.
pub fn is_address_sanitizer(name: &str) -> bool {
    ADDRESS.iter().any(|known| name.starts_with(known))
}

/// Adds to the options of AddressSanitizer that the order is not checked. The last setting counts.
pub fn without_order(existing: Option<OsString>) -> OsString {
    let mut value = existing.unwrap_or_default();
    if !value.is_empty() {
        value.push(":");
    }
    value.push("verify_asan_link_order=0");
    value
}

fn file_name(entry: &[u8]) -> &[u8] {
    entry.rsplit(|byte| *byte == b'/').next().unwrap_or(entry)
}

fn is_sanitizer(name: &[u8]) -> bool {
    SANITIZERS
        .iter()
        .any(|known| name.starts_with(known.as_bytes()))
}

/// Whether a library exports functions of libibverbs or librdmacm, and is neither of those nor
/// airdma's.
fn wraps_verbs(entry: &[u8], find: impl Fn(&str) -> Option<PathBuf>) -> bool {
    let own = ["libibverbs", "librdmacm", "libairdma"];
    if own
        .iter()
        .any(|own| file_name(entry).starts_with(own.as_bytes()))
    {
        return false;
    }
    let found = if entry.contains(&b'/') {
        Some(Path::new(OsStr::from_bytes(entry)).to_owned())
    } else {
        std::str::from_utf8(entry).ok().and_then(find)
    };
    let symbols = found.and_then(|path| Symbols::read(&path).ok());
    let exports = symbols.unwrap_or_default().exports;
    let is_verb = |name: &str| name.starts_with("ibv_") || name.starts_with("rdma_");
    exports.iter().any(|symbol| is_verb(&symbol.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(value: &str) -> String {
        let arranged = arranged(OsStr::new(value), |_| None).0;
        arranged.to_string_lossy().into_owned()
    }

    #[test]
    fn a_users_sanitizer_comes_first_and_others_stay_behind() {
        let alone = "/lib/libairdma.so";
        assert_eq!(order(alone), alone);
        let given = "/lib/libairdma.so:/usr/lib/libasan.so.8:/my/libhook.so";
        let wanted = "/usr/lib/libasan.so.8:/lib/libairdma.so:/my/libhook.so";
        assert_eq!(order(given), wanted);
        assert_eq!(order(""), "");
    }

    #[test]
    fn options_of_the_users_stay_and_the_order_is_not_checked() {
        assert_eq!(without_order(None), "verify_asan_link_order=0");
        let existing = Some("detect_leaks=0".into());
        assert_eq!(
            without_order(existing),
            "detect_leaks=0:verify_asan_link_order=0"
        );
        for (name, is_one) in [
            ("libasan.so.8", true),
            ("libclang_rt.asan-x86_64.so", true),
            ("libtsan.so.2", false),
        ] {
            assert_eq!(is_address_sanitizer(name), is_one, "{name}");
        }
    }
}
