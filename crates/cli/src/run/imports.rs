//! The imports of a program and its libraries from libibverbs and librdmacm, and whether they will
//! be found.
//!
//! The loader refuses to start a program without a required version node; a missing name matters
//! only when called.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};

use super::artefact::{Choice, how_to_get_drop_in};
use super::elf::{Elf, Symbol, Symbols};
use super::host::{CM, Host, VERBS};
use super::search::Search;

/// Most files that are read: the program, its libraries, and theirs.
const FILES_MAX: usize = 512;

/// Most names in a message.
const NAMES_MAX: usize = 4;

/// An imported symbol of the two libraries, and the file that imports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Import {
    symbol: Symbol,
    /// Library that exports it.
    of: &'static str,
    by: PathBuf,
}

/// Imports from the two libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imports {
    symbols: Vec<Import>,
    /// The files of the two libraries that the program's own search path leads to.
    verbs: Option<PathBuf>,
    cm: Option<PathBuf>,
}

/// Consequence of a missing symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The program does not start.
    NotLoaded(String),
    /// It starts, and these calls fail as not supported.
    Refused(String),
}

impl Imports {
    /// Reads a program and the libraries that it links.
    pub fn of(program: &Path, host: &Host) -> Imports {
        let (mut imports, mut seen) = (Imports::default(), HashSet::new());
        // `$ORIGIN` of a program is where the file lies to which symbolic links lead.
        let program = program.canonicalize().unwrap_or(program.to_owned());
        let mut files = VecDeque::from([(program, Search::default())]);
        while let Some((file, above)) = files.pop_front().filter(|_| seen.len() < FILES_MAX) {
            let Ok(symbols) = Symbols::read(&file) else {
                continue;
            };
            imports
                .symbols
                .extend(symbols.imports.into_iter().filter_map(|symbol| {
                    let of = library_of(&symbol.node)?;
                    let by = file.clone();
                    Some(Import { symbol, of, by })
                }));
            let Some(elf) = Elf::read(&file).ok().flatten() else {
                continue;
            };
            let search = Search::of(&file, &elf, &above);
            for name in elf.needed {
                if !seen.insert(name.clone()) {
                    continue;
                }
                let found = host.library(&name, &search);
                // What rdma-core's two libraries import from each other does not count.
                match name.as_str() {
                    VERBS => imports.verbs = found,
                    CM => imports.cm = found,
                    _ => files.extend(found.map(|file| (file, search.clone()))),
                }
            }
        }
        imports
    }

    /// The libraries that the program gets: the host's, but for those that its own search path
    /// leads to.
    pub fn seen_from(&self, host: Host) -> Host {
        Host {
            verbs: self.verbs.clone().or(host.verbs),
            cm: self.cm.clone().or(host.cm),
            cache: host.cache,
        }
    }

    /// Why the loader would refuse the program although every symbol is preloaded: the host's
    /// libraries are older than those it was built with.
    pub fn too_new_for(&self, host: &Host) -> Option<String> {
        for (name, path) in [(VERBS, &host.verbs), (CM, &host.cm)] {
            let Some(symbols) = path.as_deref().and_then(|path| Symbols::read(path).ok()) else {
                continue;
            };
            let known: HashSet<_> = symbols.nodes.iter().map(String::as_str).collect();
            let import = self.symbols.iter().find(|import| {
                import.of == name
                    && !known.is_empty()
                    && !known.contains(import.symbol.node.as_str())
            });
            if let Some(Import { symbol, by, .. }) = import {
                return Some(format!(
                    "{} needs {}, which this host's {name} does not have",
                    by.display(),
                    symbol.node
                ));
            }
        }
        None
    }

    /// Number of symbols of each library, and the newest version; `None` without any.
    pub fn summary(&self) -> Option<String> {
        let parts: Vec<String> = [(VERBS, "IBVERBS_"), (CM, "RDMACM_")]
            .into_iter()
            .filter_map(|(library, prefix)| {
                let names: HashSet<_> = self
                    .imports_of(library)
                    .map(|import| &import.symbol)
                    .collect();
                let version = |symbol: &Symbol| {
                    let (major, minor) = symbol.node.strip_prefix(prefix)?.split_once('.')?;
                    Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
                };
                let newest = names.iter().filter_map(|symbol| version(symbol)).max();
                let newest = newest.map_or(String::new(), |(major, minor)| {
                    format!(", up to {prefix}{major}.{minor}")
                });
                let count = names.len();
                (count != 0).then(|| format!("{count} of {library}{newest}"))
            })
            .collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn imports_of(&self, library: &str) -> impl Iterator<Item = &Import> {
        let symbols = self.symbols.iter();
        symbols.filter(move |import| import.of == library)
    }

    /// Imports that the chosen artefact lacks.
    pub fn lacks(&self, choice: &Choice, host: &Host) -> Vec<Lack> {
        let Ok(symbols) = Symbols::read(&choice.library) else {
            return Vec::new();
        };
        if choice.drop_in {
            let there: HashSet<_> = symbols.exports.into_iter().collect();
            let missing = self.names(|import| !there.contains(&import.symbol));
            let text = missing.map(|names| {
                format!(
                    "the drop-in directory lacks {names}, so that the loader will not start the program: a newer airdma may have that; \
                     where the host's rdma-core has it, --dropin is not needed"
                )
            });
            return text.map(Lack::NotLoaded).into_iter().collect();
        }
        let there: HashSet<_> = symbols
            .exports
            .into_iter()
            .map(|symbol| symbol.name)
            .collect();
        let too_new = self.too_new_for(host).map(|text| {
            format!(
                "{text}, so that the loader will not start the program; with the drop-in directory it needs no library of the host: {}",
                how_to_get_drop_in(&choice.library)
            )
        });
        let not_loaded = too_new.map(Lack::NotLoaded).into_iter();
        not_loaded
            .chain(self.refused(&there).into_iter().map(Lack::Refused))
            .collect()
    }

    /// Imports that the preload lacks and the host may have: airdma's contexts refuse verbs, while
    /// functions of librdmacm run on airdma's identifiers.
    fn refused(&self, there: &HashSet<String>) -> Vec<String> {
        let missing = |of_cm: bool| {
            self.names(|import| {
                let name = &import.symbol.name;
                is_replaced(&import.symbol)
                    && !there.contains(name)
                    && name.starts_with("rdma_") == of_cm
            })
        };
        let verbs = missing(false).map(|names| {
            format!(
                "this airdma does not have {names}: the program will be told \"Operation not supported\" where it calls that; a newer \
                 airdma may have it"
            )
        });
        let cm = missing(true).map(|names| {
            format!(
                "this airdma does not have {names}: the host's librdmacm does not know airdma's identifiers, and the program may fail where it \
                 calls that; a newer airdma may have it"
            )
        });
        verbs.into_iter().chain(cm).collect()
    }

    /// The missing imports as text.
    fn names(&self, is_missing: impl Fn(&Import) -> bool) -> Option<String> {
        let missing: BTreeSet<_> = self
            .symbols
            .iter()
            .filter(|import| is_missing(import))
            .map(|import| format!("{} ({})", import.symbol.name, import.symbol.node))
            .collect();
        let more = missing.len().saturating_sub(NAMES_MAX);
        let mut text = missing
            .into_iter()
            .take(NAMES_MAX)
            .collect::<Vec<_>>()
            .join(", ");
        if more != 0 {
            text.push_str(&format!(" and {more} more"));
        }
        Some(text).filter(|text| !text.is_empty())
    }
}

/// Library that a version node belongs to.
fn library_of(node: &str) -> Option<&'static str> {
    if node.starts_with("IBVERBS_") {
        Some(VERBS)
    } else {
        node.starts_with("RDMACM_").then_some(CM)
    }
}

/// Whether the preload replaces it: rdma-core's rsockets and internals of its hardware providers
/// remain.
fn is_replaced(symbol: &Symbol) -> bool {
    symbol.name.starts_with("rdma_")
        || (symbol.node.starts_with("IBVERBS_") && !symbol.node.starts_with("IBVERBS_PRIVATE_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(name: &str, node: &str) -> Import {
        Import {
            symbol: Symbol {
                name: name.to_owned(),
                node: node.to_owned(),
            },
            of: VERBS,
            by: "/bin/program".into(),
        }
    }

    #[test]
    fn what_stays_with_rdma_core_is_not_missed_in_the_preload() {
        let kept = [
            ("rsocket", "RDMACM_1.0"),
            ("ibv_cmd_alloc_pd", "IBVERBS_PRIVATE_34"),
        ];
        for (name, node) in kept {
            assert!(!is_replaced(&import(name, node).symbol), "{name}");
        }
        let replaced = [
            ("rdma_listen", "RDMACM_1.0"),
            ("ibv_future", "IBVERBS_1.99"),
        ];
        for (name, node) in replaced {
            assert!(is_replaced(&import(name, node).symbol), "{name}");
        }
    }

    #[test]
    fn a_message_names_a_few_and_counts_the_others() {
        let names = ["a", "b", "b", "c", "d", "e", "f"];
        let imports = Imports {
            symbols: names.map(|name| import(name, "IBVERBS_1.99")).into(),
            ..Imports::default()
        };
        let text = imports.names(|_| true);
        assert_eq!(
            text.as_deref(),
            Some(
                "a (IBVERBS_1.99), b (IBVERBS_1.99), c (IBVERBS_1.99), d (IBVERBS_1.99) and 2 more"
            )
        );
        assert_eq!(imports.names(|_| false), None);
    }

    #[test]
    fn a_missing_verb_is_refused_a_librdmacm_function_may_fail() {
        let symbols = vec![
            import("ibv_future", "IBVERBS_1.99"),
            import("rdma_future", "RDMACM_1.99"),
            import("ibv_open_device", "IBVERBS_1.1"),
        ];
        let imports = Imports {
            symbols,
            ..Imports::default()
        };
        let said = imports.refused(&HashSet::from(["ibv_open_device".to_owned()]));
        let [verb, cm] = said.as_slice() else {
            panic!("{said:?}");
        };
        assert!(
            verb.contains("ibv_future") && verb.contains("will be told"),
            "{verb}"
        );
        assert!(
            cm.contains("rdma_future") && cm.contains("may fail"),
            "{cm}"
        );
        assert!(
            !cm.contains("will be told") && !verb.contains("rdma_"),
            "{said:?}"
        );
    }
}
