//! The survey before anything is written: whether the offer fits the directory, and under which
//! names.

use crate::grain::is_kept;
use crate::manifest::{Entry, Kind, Manifest, NAME_BYTES_MAX, folded};
use crate::options::{Clash, Options, Symlinks};
use crate::tree::{DIRECTORY, Fitting, Tree, is_absent};
use crate::twins::Twins;
use crate::walk::modified;
use crate::{Error, Problem};
use rustix::fs::{AtFlags, Dir, FileType, Stat};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most numbers that are tried in "name (1)".
const NUMBERS_MAX: u32 = 9999;
const NUMBER_DIGITS_MAX: usize = 4;

/// Fits `manifest` into `directory`. Writes nothing.
pub(crate) fn survey(
    directory: OwnedFd,
    manifest: &Arc<Manifest>,
    options: &Options,
) -> Result<Fitting, Error> {
    let mut survey = Survey {
        tree: Tree::new(directory, Arc::clone(manifest), Fitting::default()),
        manifest,
        links: options.symlinks,
        there: HashSet::new(),
    };
    match options.clash {
        Clash::Refuse => survey.refuse()?,
        Clash::Rename => survey.rename()?,
        Clash::Overwrite => survey.merge(|_, _, _, _| Ok(Existing::Replace))?,
        Clash::SkipSame => survey.merge(is_same)?,
    }
    Ok(survey.tree.fitting)
}

/// What to do about an existing file or link.
enum Existing {
    Replace,
    Keep,
    Refuse,
}

struct Survey<'a> {
    tree: Tree,
    manifest: &'a Manifest,
    links: Symlinks,
    /// Directories of the manifest that exist.
    there: HashSet<u32>,
}

impl Survey<'_> {
    fn refuse(&mut self) -> Result<(), Error> {
        let mut found = None;
        for (index, entry) in self.tops().filter(|(_, entry)| !self.is_left_out(entry)) {
            if stat_in(self.tree.top(), &entry.name)?.is_some() {
                found = Some(self.exists(index));
                break;
            }
        }
        let Some(refusal) = found else {
            return Ok(());
        };
        Err(match self.is_all_there() {
            true => Error {
                problem: Problem::AllThere,
                ..refusal
            },
            false => refusal,
        })
    }

    /// Whether [`Clash::SkipSame`] would send nothing.
    ///
    /// A sender that was killed after everything had arrived then learns more than that a name
    /// exists.
    fn is_all_there(&mut self) -> bool {
        self.merge(is_same).is_ok()
            && self.manifest.iter().all(|(index, entry)| match entry.kind {
                Kind::Directory => self.there.contains(&index),
                Kind::Symlink(_) if self.is_left_out(entry) => true,
                Kind::File(_) | Kind::Symlink(_) => self.tree.fitting.unwanted.contains(index),
            })
    }

    /// A link that is not created clashes with no name.
    fn is_left_out(&self, entry: &Entry) -> bool {
        matches!(&entry.kind, Kind::Symlink(target) if !self.links.makes(target, entry.depth))
    }

    fn rename(&mut self) -> Result<(), Error> {
        // Folded as file systems may do: no entry gets a name that another has there.
        let mut taken: HashSet<String> =
            self.tops().map(|(_, entry)| folded(&entry.name)).collect();
        let tops: Vec<_> = self
            .tops()
            .map(|(index, entry)| (index, entry.clone()))
            .collect();
        for (index, entry) in tops {
            if stat_in(self.tree.top(), &entry.name)?.is_none() {
                continue;
            }
            let name = self
                .free_name(&entry, &taken)?
                .ok_or_else(|| self.exists(index))?;
            taken.insert(folded(&name));
            self.tree.fitting.renamed.insert(index, name);
        }
        Ok(())
    }

    fn free_name(
        &self,
        entry: &Entry,
        taken: &HashSet<String>,
    ) -> Result<Option<Box<[u8]>>, Error> {
        for number in 1..=NUMBERS_MAX {
            let name = numbered(entry, number);
            if !taken.contains(&folded(&name)) && stat_in(self.tree.top(), &name)?.is_none() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    fn merge(
        &mut self,
        decide: impl Fn(BorrowedFd<'_>, &[u8], &Entry, &Stat) -> Result<Existing, Error>,
    ) -> Result<(), Error> {
        let twins = Twins::of(self.manifest);
        for (index, entry) in self.manifest.iter() {
            let is_below = |parent| self.there.contains(&parent);
            if !entry.parent.is_none_or(is_below) || self.is_left_out(entry) {
                continue;
            }
            let parent = self.tree.existing(index, DIRECTORY)?;
            let Some(stat) = stat_in(parent, &entry.name)? else {
                continue;
            };
            // The existing one is another entry of the offer, and this one must be reported as
            // missing.
            if twins.is_later(index) && !is_listed(parent, &entry.name)? {
                continue;
            }
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            match (&entry.kind, is_directory) {
                (Kind::Directory, true) => {
                    self.there.insert(index);
                }
                (Kind::Directory, false) | (Kind::File(_) | Kind::Symlink(_), true) => {
                    return Err(self.exists(index));
                }
                (Kind::File(_) | Kind::Symlink(_), false) => {
                    match decide(parent, &entry.name, entry, &stat)? {
                        Existing::Replace => {}
                        // The same file, under a second name.
                        Existing::Keep if self.tree.is_taken(index, None)? => {}
                        Existing::Keep => self.tree.fitting.unwanted.push(index),
                        Existing::Refuse => return Err(self.exists(index)),
                    }
                }
            }
        }
        Ok(())
    }

    fn tops(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.manifest.iter().filter(|(_, entry)| entry.depth == 0)
    }

    fn exists(&self, index: u32) -> Error {
        Error::new("create", self.manifest.path(index), Problem::Exists)
    }
}

/// Checks that the options allow the symbolic links of an offer, even if it was begun under other
/// options.
pub(crate) fn check_links(manifest: &Manifest, options: &Options) -> Result<(), Error> {
    if options.symlinks != Symlinks::Refuse {
        return Ok(());
    }
    let is_link = |entry: &Entry| matches!(entry.kind, Kind::Symlink(_));
    match manifest.iter().find(|(_, entry)| is_link(entry)) {
        Some((index, _)) => Err(Error::new("create", manifest.path(index), Problem::Link)),
        None => Ok(()),
    }
}

fn is_same(
    parent: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
    stat: &Stat,
) -> Result<Existing, Error> {
    let same = match &entry.kind {
        Kind::File(content) => {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_size as u64 == content.size
                && is_kept(entry.modified, modified(stat))
        }
        Kind::Symlink(target) => match rustix::fs::readlinkat(parent, name, Vec::new()) {
            Ok(existing) => existing.as_bytes() == &**target,
            // Not a link.
            Err(Errno::INVAL) => false,
            Err(errno) => return Err(Error::at("read", name)(errno)),
        },
        Kind::Directory => false,
    };
    Ok(if same {
        Existing::Keep
    } else {
        Existing::Refuse
    })
}

/// Status of `name` in `parent`, without following a link.
fn stat_in(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Stat>, Error> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(errno) if is_absent(errno) => Ok(None),
        Err(errno) => Err(Error::at("look at", name)(errno)),
    }
}

/// Whether a directory lists this very name: where names are folded, other names find the same
/// file.
fn is_listed(directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Error> {
    let listed = Dir::read_from(directory).map_err(Error::at("read", name))?;
    for entry in listed {
        if entry
            .map_err(Error::at("read", name))?
            .file_name()
            .to_bytes()
            == name
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether `name` is one that [`Clash::Rename`] may give to an entry.
pub(crate) fn is_numbered(entry: &Entry, name: &[u8]) -> bool {
    let after = |at: usize| name[at..].iter().take_while(|byte| byte.is_ascii_digit());
    let opens = (0..name.len()).filter(|&at| name[at..].starts_with(b" ("));
    let mut numbers = opens.map(|open| {
        let digits = after(open + 2).take(NUMBER_DIGITS_MAX);
        digits.fold(0, |number, digit| 10 * number + u32::from(digit - b'0'))
    });
    numbers.any(|number| (1..=NUMBERS_MAX).contains(&number) && *numbered(entry, number) == *name)
}

/// "name (1).txt"; a directory's name has no extension.
fn numbered(entry: &Entry, number: u32) -> Box<[u8]> {
    let name = &*entry.name;
    let dot = match entry.kind {
        Kind::File(_) => name
            .iter()
            .rposition(|&byte| byte == b'.')
            .filter(|&dot| dot > 0),
        Kind::Directory | Kind::Symlink(_) => None,
    };
    let (stem, ending) = name.split_at(dot.unwrap_or(name.len()));
    let number = format!(" ({number})");
    let room = NAME_BYTES_MAX
        .saturating_sub(number.len() + ending.len())
        .min(stem.len());
    // Cuts between characters if the name is UTF-8.
    let cut = (0..=room)
        .rev()
        .find(|&cut| stem.get(cut).is_none_or(|byte| byte & 0xc0 != 0x80))
        .unwrap_or(room);
    let mut name = [&stem[..cut], number.as_bytes(), ending].concat();
    name.truncate(NAME_BYTES_MAX);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Modified;

    #[test]
    fn only_what_rename_can_have_chosen_is_a_numbered_name() {
        let entry = |name: &str, kind| Entry {
            parent: None,
            depth: 0,
            name: name.as_bytes().into(),
            mode: 0o644,
            modified: Modified {
                seconds: 0,
                nanos: 0,
            },
            kind,
        };
        let file = |name: &str| {
            let content = crate::manifest::Content {
                size: 0,
                stamp: 0,
                extents: None,
            };
            entry(name, Kind::File(content))
        };
        for entry in [
            file("name.txt"),
            file("name (2) (3).txt"),
            file(".hidden"),
            file(&"é".repeat(127)),
            entry("directory.d", Kind::Directory),
        ] {
            for number in [1, 10, NUMBERS_MAX] {
                assert!(is_numbered(&entry, &numbered(&entry, number)));
            }
            for number in [0, NUMBERS_MAX + 1] {
                assert!(!is_numbered(&entry, &numbered(&entry, number)));
            }
        }
        for name in [
            "../x",
            "/x",
            "name.txt",
            "name (1)",
            "name (01).txt",
            "name (1).txt/x",
            "other (1).txt",
            "",
        ] {
            assert!(!is_numbered(&file("name.txt"), name.as_bytes()), "{name}");
        }
    }
}
