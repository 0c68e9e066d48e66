//! The two artefacts: where they are installed, and which of them a program gets.
//!
//! *The preload*, `libairdma.so`, precedes rdma-core's libraries on hosts that have them;
//! rdma-core's rsockets then run on it. *The drop-in directory* has airdma under the names of
//! rdma-core's libraries, for hosts without them. It is preloaded as well, because a library with
//! an RPATH of its own would find rdma-core's libraries first; being one file, it is loaded once.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::host::{Host, VERBS};
use super::order;
use super::program::Program;
use super::search::Search;

const LIBRARY: &str = "libairdma.so";
const SOCKETS: &str = "libairdma_sockets.so";
/// Name of the folder, which is next to [`LIBRARY`].
const DROP_IN: &str = "dropin";

/// The installed artefacts: at least one of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub preload: Option<PathBuf>,
    /// The drop-in directory.
    pub drop_in: Option<PathBuf>,
}

/// The artefact for a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Environment variables to set.
    pub variables: Vec<(&'static str, OsString)>,
    /// Whether it is the drop-in directory.
    pub drop_in: bool,
    /// The file with the symbols.
    pub library: PathBuf,
    /// The reason, in a few words.
    pub because: String,
}

impl Installed {
    /// Searches `AIRDMA_LIB`, or places relative to this binary.
    ///
    /// # Errors
    /// A message if nothing is installed.
    pub fn look() -> Result<Installed, String> {
        if let Some(path) = named_by("AIRDMA_LIB")? {
            return Ok(Installed {
                drop_in: path.parent().and_then(drop_in),
                preload: Some(path),
            });
        }
        let folders = folders_of(LIBRARY, "AIRDMA_LIB")?;
        let preloads = folders.iter().map(|folder| folder.join(LIBRARY));
        let installed = Installed {
            preload: preloads.into_iter().find(|place| place.is_file()),
            drop_in: folders.iter().find_map(|folder| drop_in(folder)),
        };
        if installed.preload.is_none() && installed.drop_in.is_none() {
            return Err(missing(&folders, LIBRARY, "airdma-verbs", "AIRDMA_LIB"));
        }
        Ok(installed)
    }

    /// Chooses an artefact.
    ///
    /// `forced`: the drop-in directory regardless of the host; `too_new`: why the loader would
    /// refuse the program with the host's libraries.
    ///
    /// # Errors
    /// A message if the artefact is not installed, or the loader could not find it.
    pub fn choose(
        &self,
        host: &Host,
        forced: bool,
        too_new: Option<String>,
    ) -> Result<Choice, String> {
        let missing = host.missing();
        let already = self.drop_in.as_deref().is_some_and(|folder| {
            let ours = folder.join(VERBS).canonicalize().ok();
            let hosts = host.verbs.as_deref().map(Path::canonicalize);
            ours.is_some() && hosts.and_then(Result::ok) == ours
        });
        let because = match (&self.preload, &self.drop_in) {
            (_, None) if forced => {
                return Err(format!(
                    "--dropin needs the drop-in directory, which is not there: {}",
                    how_to_get_drop_in(self.preload.as_deref().unwrap_or(Path::new(LIBRARY)))
                ));
            }
            (_, Some(_)) if forced => "--dropin was given".to_owned(),
            (_, Some(_)) if already => "LD_LIBRARY_PATH leads there already".to_owned(),
            (_, Some(_)) if !missing.is_empty() => {
                format!("this host has no {}", missing.join(" and no "))
            }
            (None, _) => format!("{LIBRARY} is not installed"),
            (_, Some(_)) if too_new.is_some() => too_new.unwrap_or_default(),
            (Some(preload), None) if !missing.is_empty() => {
                let because = format!("there is no folder {DROP_IN} beside it");
                return Choice::preload(preload, because);
            }
            (Some(preload), _) => {
                let because = "this host has rdma-core's libraries; its rsockets run on airdma";
                return Choice::preload(preload, because.to_owned());
            }
        };
        match &self.drop_in {
            Some(folder) => Choice::drop_in(folder, because),
            None => Err(because),
        }
    }
}

impl Choice {
    /// Puts those libraries before airdma that the user preloads and that must come first, and lets
    /// the program start whose own AddressSanitizer wants to be the first.
    pub fn arrange(&mut self, program: Option<&Program>, host: &Host) {
        let elf = program.and_then(|program| program.elf.as_ref());
        let needed = elf.map_or(&[][..], |elf| &elf.needed);
        if let Some(runtime) = needed.iter().find(|name| order::is_address_sanitizer(name)) {
            let value = order::without_order(env::var_os(order::ASAN_OPTIONS));
            self.variables.push((order::ASAN_OPTIONS, value));
            let because = format!("; {runtime} does not check that it comes first");
            self.because.push_str(&because);
        }
        let search = match (program, elf) {
            (Some(program), Some(elf)) => Search::of(program.last(), elf, &Search::default()),
            _ => Search::default(),
        };
        for (_, value) in self
            .variables
            .iter_mut()
            .filter(|(name, _)| *name == "LD_PRELOAD")
        {
            let (arranged, first) = order::arranged(value, |name| host.library(name, &search));
            *value = arranged;
            if !first.is_empty() {
                self.because.push_str("; before it ");
                self.because.push_str(&first.join(" and "));
                self.because.push_str(", which must come first");
            }
        }
    }

    /// Preloads another library behind airdma's.
    ///
    /// # Errors
    /// A message if the loader could not find it.
    pub fn also(&mut self, library: &Path) -> Result<(), String> {
        for (name, value) in &mut self.variables {
            if *name == "LD_PRELOAD" {
                let behind = list(library, None)?;
                value.push(OsStr::new(":"));
                value.push(behind);
            }
        }
        Ok(())
    }

    fn preload(library: &Path, because: String) -> Result<Choice, String> {
        Ok(Choice {
            variables: vec![before("LD_PRELOAD", library)?],
            drop_in: false,
            library: library.to_owned(),
            because,
        })
    }

    fn drop_in(folder: &Path, because: String) -> Result<Choice, String> {
        Ok(Choice {
            variables: vec![
                before("LD_PRELOAD", &folder.join(VERBS))?,
                before("LD_LIBRARY_PATH", folder)?,
            ],
            drop_in: true,
            library: folder.join(VERBS),
            because,
        })
    }
}

/// The preload of `airdma sockets`: `AIRDMA_SOCKETS_LIB`, or beside this binary.
///
/// # Errors
/// A message if it is not installed.
pub fn sockets() -> Result<PathBuf, String> {
    let variable = "AIRDMA_SOCKETS_LIB";
    if let Some(path) = named_by(variable)? {
        return Ok(path);
    }
    let folders = folders_of(SOCKETS, variable)?;
    let places = folders.iter().map(|folder| folder.join(SOCKETS));
    let mut found = places.filter(|place| place.is_file());
    found
        .next()
        .ok_or_else(|| missing(&folders, SOCKETS, "airdma-sockets", variable))
}

/// The file that a variable names, if it is set.
fn named_by(variable: &str) -> Result<Option<PathBuf>, String> {
    let Some(given) = env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let given = PathBuf::from(given);
    match given.canonicalize() {
        Ok(path) if path.is_file() => Ok(Some(path)),
        Ok(_) => Err(format!("{variable}={}: not a file", given.display())),
        Err(error) => Err(format!("{variable}={}: {error}", given.display())),
    }
}

/// Where a library may be that comes with this binary.
fn folders_of(library: &str, variable: &str) -> Result<[PathBuf; 3], String> {
    let binary = env::current_exe().map_err(|error| {
        format!("cannot find {library} beside this binary: {error} `mount -t proc proc /proc`, or set {variable} to its path")
    })?;
    Ok(folders(binary.parent().unwrap_or(Path::new("/"))))
}

/// The variable that preloads a library, in front of what is preloaded already.
///
/// # Errors
/// A message if the loader could not find it.
pub fn preload(library: &Path) -> Result<(&'static str, OsString), String> {
    before("LD_PRELOAD", library)
}

/// How to get the drop-in directory that belongs to a library.
pub fn how_to_get_drop_in(library: &Path) -> String {
    let place = library.with_file_name(DROP_IN);
    let place = place.display();
    format!(
        "`make dropin` in airdma's source tree builds the drop-in directory, which goes to {place}"
    )
}

/// Where the artefacts may be installed, best first.
fn folders(binary: &Path) -> [PathBuf; 3] {
    ["", "../lib", "../lib/airdma"].map(|folder| binary.join(folder))
}

fn drop_in(folder: &Path) -> Option<PathBuf> {
    let folder = folder.join(DROP_IN);
    folder.join(VERBS).is_file().then_some(folder)
}

fn missing(folders: &[PathBuf], library: &str, package: &str, variable: &str) -> String {
    let mut message = format!("{library} is in none of these places:");
    for folder in folders {
        message.push_str(&format!("\n  {}", folder.join(library).display()));
    }
    message.push_str(&format!(
        "\n`cargo build --release -p {package}` in airdma's source tree builds it; {variable} may name another place"
    ));
    message
}

/// A variable with a list of paths: ours first, then its old value.
fn before(variable: &'static str, path: &Path) -> Result<(&'static str, OsString), String> {
    Ok((variable, list(path, env::var_os(variable))?))
}

fn list(path: &Path, existing: Option<OsString>) -> Result<OsString, String> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':' | b';')) {
        return Err(format!(
            "{}: a path with spaces, colons or semicolons cannot be preloaded; move the library, or link to it",
            path.display()
        ));
    }
    let mut value = path.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        value.push(OsStr::new(":"));
        value.push(existing);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn installed(preload: bool, drop_in: bool) -> Installed {
        Installed {
            preload: preload.then(|| "/lib/airdma/libairdma.so".into()),
            drop_in: drop_in.then(|| "/lib/airdma/dropin".into()),
        }
    }

    fn host(verbs: bool, cm: bool) -> Host {
        Host {
            verbs: verbs.then(|| "/usr/lib/libibverbs.so.1".into()),
            cm: cm.then(|| "/usr/lib/librdmacm.so.1".into()),
            ..Host::default()
        }
    }

    #[test]
    fn hosts_with_rdma_core_get_the_preload_others_the_drop_in() {
        let chosen = |host, forced| installed(true, true).choose(&host, forced, None).unwrap();
        assert!(!chosen(host(true, true), false).drop_in);
        assert!(chosen(host(true, true), true).drop_in);
        assert!(chosen(host(false, false), false).drop_in);
        let choice = chosen(host(true, false), false);
        assert_eq!(choice.because, "this host has no librdmacm.so.1");
        let names: Vec<&str> = choice.variables.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["LD_PRELOAD", "LD_LIBRARY_PATH"]);
    }

    #[test]
    fn a_program_newer_than_the_hosts_libraries_gets_the_drop_in() {
        let too_new = || Some("it needs IBVERBS_1.15".to_owned());
        let choice = installed(true, true).choose(&host(true, true), false, too_new());
        assert_eq!(choice.unwrap().because, "it needs IBVERBS_1.15");
        // Where there is none, `Imports::lacks` says what will happen.
        let choice = installed(true, false).choose(&host(true, true), false, too_new());
        assert!(!choice.unwrap().drop_in);
    }

    #[test]
    fn what_is_not_installed_is_not_chosen() {
        let choice = installed(true, false).choose(&host(false, false), false, None);
        assert!(!choice.unwrap().drop_in);
        let refused = installed(true, false).choose(&host(true, true), true, None);
        assert!(refused.unwrap_err().contains("make dropin"));
        let choice = installed(false, true).choose(&host(true, true), false, None);
        assert!(choice.unwrap().drop_in);
    }

    #[test]
    fn an_existing_preload_is_kept_behind_ours() {
        let library = Path::new("/usr/lib/airdma/libairdma.so");
        let value = |existing: &str| list(library, Some(existing.into()));
        assert_eq!(
            value("/a.so:/b.so"),
            Ok("/usr/lib/airdma/libairdma.so:/a.so:/b.so".into())
        );
        assert_eq!(value(""), Ok(library.into()));
        assert_eq!(list(library, None), Ok(library.into()));
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        assert!(list(Path::new("/my files/libairdma.so"), None).is_err());
        assert!(list(Path::new("/a:b/libairdma.so"), None).is_err());
    }

    #[test]
    fn an_installed_tree_and_a_build_folder_are_both_searched() {
        let folders = folders(Path::new("/usr/bin"));
        assert_eq!(folders[0], Path::new("/usr/bin/"));
        assert_eq!(folders[2], Path::new("/usr/bin/../lib/airdma"));
        let message = missing(&folders, LIBRARY, "airdma-verbs", "AIRDMA_LIB");
        assert!(message.contains("/usr/bin/../lib/airdma/libairdma.so"));
        assert!(message.contains("AIRDMA_LIB"), "{message}");
    }
}
