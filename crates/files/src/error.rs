//! Errors with files, each with its remedy.

use crate::printable::printable;
use rustix::io::Errno;

/// The operation that failed, its path, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {doing} {path}: {problem}")]
pub struct Error {
    /// The operation, such as "write".
    pub doing: &'static str,
    /// The path, escaped: a name may hold newlines and terminal codes.
    pub path: String,
    /// The reason.
    pub problem: Problem,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// `ENOSPC`, or less free space than the offer needs.
    #[error(
        "no space left on the disk: free some, and start the transfer again, which goes on where it stopped"
    )]
    NoSpace,
    /// `EDQUOT`.
    #[error(
        "your quota is used up: free some, and start the transfer again, which goes on where it stopped"
    )]
    Quota,
    /// `EROFS`.
    #[error("it is on a read-only file system: choose another directory")]
    ReadOnly,
    /// `EACCES`, `EPERM`.
    #[error("permission denied: look at its owner and mode, or choose another")]
    Permission,
    /// `EFBIG`, or a size that this file system does not support.
    #[error(
        "it is larger than this file system allows, or the limit of this process (`ulimit -f`): choose another, or raise the limit"
    )]
    TooLarge,
    /// A file, directory or link already has the name.
    #[error(
        "it exists: move it away, or choose what happens to names that exist (`airdma recv --if-exists rename|overwrite|skip-same`)"
    )]
    Exists,
    /// As [`Problem::Exists`], and by size and time everything offered is there already.
    #[error(
        "it exists, and all that is offered is there with the same sizes and times: perhaps it has arrived before; to have it again, move it away, or `airdma recv --if-exists rename|overwrite`"
    )]
    AllThere,
    /// A symbolic link, or another file, where a directory should be.
    #[error("a symbolic link or another file, not a directory, is in the way: move it away")]
    NoDirectory,
    /// It does not exist, or no longer.
    #[error("it does not exist")]
    Missing,
    /// The file system does not support the name.
    #[error(
        "this file system does not take such a name: rename it, or choose a directory on another disk"
    )]
    Name,
    /// Another transfer of the same offer into the same directory runs.
    #[error("another transfer of the same files into this directory is running: wait for it")]
    Busy,
    /// The state of an interrupted transfer was changed.
    #[error("what an interrupted transfer left there was changed: remove it, and start again")]
    Tampered,
    /// A symbolic link that the options refuse.
    #[error(
        "it is a symbolic link, and `airdma recv --symlinks refuse` takes none: `--symlinks inside`, `all` or `skip` does"
    )]
    Link,
    /// A device, socket or pipe, whose size is unknown.
    #[error(
        "it is a device, socket or pipe, and does not say how long it is: `airdma send -` sends what a program writes to standard input, as in `cat DEVICE | airdma send -`"
    )]
    Special,
    /// A name that is reserved for unfinished transfers.
    #[error(
        "its name is that of an unfinished transfer of airdma's, which no receiver takes: finish that transfer, or rename it"
    )]
    Reserved,
    /// The path has no name that could be offered.
    #[error("it has no name of its own that could be offered: name it otherwise")]
    NoName,
    /// Two paths have the same name.
    #[error("another path that is to be sent has the same name: send them one after the other")]
    SameName,
    /// The offer has too many entries, or they are too deep.
    #[error(transparent)]
    Manifest(#[from] crate::ManifestError),
    /// Any other error of the kernel.
    #[error("{}", std::io::Error::from(*.0))]
    Other(Errno),
}

impl Error {
    /// Makes an error.
    pub(crate) fn new(doing: &'static str, path: impl AsRef<[u8]>, problem: Problem) -> Self {
        Self {
            doing,
            path: printable(path.as_ref()),
            problem,
        }
    }

    /// For `map_err`: the kernel's error about `path`.
    pub(crate) fn at(doing: &'static str, path: impl AsRef<[u8]>) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::new(doing, path, Problem::from(errno))
    }
}

impl From<Errno> for Problem {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOSPC => Self::NoSpace,
            Errno::DQUOT => Self::Quota,
            Errno::ROFS => Self::ReadOnly,
            Errno::ACCESS | Errno::PERM => Self::Permission,
            Errno::FBIG | Errno::OVERFLOW => Self::TooLarge,
            Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR => Self::Exists,
            Errno::LOOP | Errno::NOTDIR => Self::NoDirectory,
            Errno::NOENT => Self::Missing,
            Errno::ILSEQ | Errno::NAMETOOLONG => Self::Name,
            errno => Self::Other(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_used_up_quota_are_different_things() {
        assert_eq!(Problem::from(Errno::NOSPC), Problem::NoSpace);
        assert_eq!(Problem::from(Errno::DQUOT), Problem::Quota);
        let said = Error::at("write", b"a/b")(Errno::NOSPC).to_string();
        assert!(
            said.starts_with("cannot write a/b: no space left"),
            "{said}"
        );
    }
}
