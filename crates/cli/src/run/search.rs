//! The folders in which `ld.so(8)` searches for the libraries of one object, as that object and
//! those that link it name them.

use std::path::{Path, PathBuf};

use super::elf::Elf;

/// The folders of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Those before `LD_LIBRARY_PATH`: its DT_RPATH, and that of the objects that link it.
    pub first: Vec<PathBuf>,
    /// Those behind it: its DT_RUNPATH.
    pub later: Vec<PathBuf>,
    /// The DT_RPATH that the objects which it links search as well.
    handed_down: Vec<PathBuf>,
}

impl Search {
    /// The folders of a file; `above` are those of the object that links it.
    pub fn of(file: &Path, elf: &Elf, above: &Search) -> Search {
        let origin = file.parent().unwrap_or(Path::new("/"));
        let folders = |list: &Option<String>| {
            let list = list.as_deref().unwrap_or_default();
            let folders = list.split(':').filter(|folder| !folder.is_empty());
            folders
                .flat_map(|folder| expanded(folder, origin))
                .collect::<Vec<_>>()
        };
        if elf.runpath.is_some() {
            return Search {
                first: Vec::new(),
                later: folders(&elf.runpath),
                handed_down: above.handed_down.clone(),
            };
        }
        let mut first = folders(&elf.rpath);
        first.extend(above.handed_down.iter().cloned());
        Search {
            handed_down: first.clone(),
            first,
            later: Vec::new(),
        }
    }
}

/// A folder with the loader's variables replaced. `$LIB` depends on how the C library was built.
fn expanded(folder: &str, origin: &Path) -> Vec<PathBuf> {
    let replace = |folder: &str, name: &str, value: &str| {
        folder
            .replace(&format!("${{{name}}}"), value)
            .replace(&format!("${name}"), value)
    };
    let folder = replace(folder, "ORIGIN", &origin.to_string_lossy());
    let folder = replace(&folder, "PLATFORM", std::env::consts::ARCH);
    let triplet = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    let mut folders: Vec<PathBuf> = [triplet.as_str(), "lib64", "lib"]
        .map(|lib| PathBuf::from(replace(&folder, "LIB", lib)))
        .into();
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(rpath: Option<&str>, runpath: Option<&str>) -> Elf {
        let machine = super::super::elf::Machine::ours();
        Elf {
            machine: machine.unwrap_or_else(|error| panic!("{error}")),
            interpreter: None,
            needed: Vec::new(),
            rpath: rpath.map(str::to_owned),
            runpath: runpath.map(str::to_owned),
            rsockets: false,
        }
    }

    fn search(elf: &Elf, above: &Search) -> Search {
        Search::of(Path::new("/opt/bin/program"), elf, above)
    }

    #[test]
    fn an_rpath_is_handed_down_and_a_runpath_is_not() {
        let program = search(&elf(Some("/a:$ORIGIN/../lib"), None), &Search::default());
        let wanted = ["/a", "/opt/bin/../lib"].map(PathBuf::from);
        assert_eq!(
            (&program.first[..], &program.later[..]),
            (&wanted[..], &[][..])
        );
        let library = search(&elf(Some("/b"), None), &program);
        let wanted = ["/b", "/a", "/opt/bin/../lib"].map(PathBuf::from);
        assert_eq!(library.first, wanted);
        let program = search(&elf(None, Some("/c")), &Search::default());
        assert_eq!(program.later, [PathBuf::from("/c")]);
        assert_eq!(search(&elf(None, None), &program), Search::default());
    }

    #[test]
    fn a_runpath_takes_the_place_of_every_rpath() {
        let above = search(&elf(Some("/a"), None), &Search::default());
        let library = search(&elf(Some("/b"), Some("/c")), &above);
        assert_eq!((library.first.len(), library.later.len()), (0, 1));
        // The libraries that it links search where its own program says.
        assert_eq!(
            search(&elf(None, None), &library).first,
            [PathBuf::from("/a")]
        );
    }

    #[test]
    fn the_loaders_variables_are_replaced() {
        let here = Path::new("/opt");
        assert_eq!(expanded("${ORIGIN}/x", here), [PathBuf::from("/opt/x")]);
        assert_eq!(
            expanded("/usr/$LIB/x", here)[1],
            PathBuf::from("/usr/lib64/x")
        );
    }
}
