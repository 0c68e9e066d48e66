//! What goes wrong with files, and what to do about it.

use crate::printable::printable;
use rustix::io::Errno;

/// What was done, to what, and why it did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {doing} {path}: {problem}")]
pub struct Error {
    /// Such as "write".
    pub doing: &'static str,
    /// The path, with what is not printable escaped: a name may hold newlines and terminal codes.
    pub path: String,
    /// What was in the way.
    pub problem: Problem,
}

/// What was in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// `ENOSPC`, or less room than the offer needs.
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
    /// `EFBIG`, or a size that this file system does not have.
    #[error(
        "it is larger than this file system allows, or the limit of this process (`ulimit -f`): choose another, or raise the limit"
    )]
    TooLarge,
    /// Something is at the place where a file, directory or link is to be.
    #[error(
        "it exists: move it away, or choose what happens to names that exist (`airdma recv --if-exists rename|overwrite|skip-same`)"
    )]
    Exists,
    /// The same, and all that is offered is there already, as far as sizes and times tell.
    #[error(
        "it exists, and all that is offered is there with the same sizes and times: perhaps it has arrived before; to have it again, move it away, or `airdma recv --if-exists rename|overwrite`"
    )]
    AllThere,
    /// A symbolic link, or no directory, where a directory should be.
    #[error("a symbolic link or something that is no directory is in the way: move it away")]
    NoDirectory,
    /// Not there (any more).
    #[error("it does not exist")]
    Missing,
    /// The name is not possible in this file system.
    #[error(
        "this file system does not take such a name: rename it, or choose a directory on another disk"
    )]
    Name,
    /// Another transfer of the same offer into the same directory runs.
    #[error("another transfer of the same files into this directory is running: wait for it")]
    Busy,
    /// What an interrupted transfer left is not as it was.
    #[error("what an interrupted transfer left there was changed: remove it, and start again")]
    Tampered,
    /// A symbolic link that the options refuse.
    #[error(
        "it is a symbolic link, and `airdma recv --symlinks refuse` takes none: `--symlinks inside`, `all` or `skip` does"
    )]
    Link,
    /// A device, socket or pipe, of which nothing says how much there is to read.
    #[error(
        "it is a device, socket or pipe, and does not say how long it is: `airdma send -` sends what a program writes to standard input, as in `cat DEVICE | airdma send -`"
    )]
    Special,
    /// A name that unfinished transfers have.
    #[error(
        "its name is that of an unfinished transfer of airdma's, which no receiver takes: finish that transfer, or rename it"
    )]
    Reserved,
    /// No path that can be sent.
    #[error("it has no name of its own that could be offered: name it otherwise")]
    NoName,
    /// Two paths with the same name.
    #[error("another path that is to be sent has the same name: send them one after the other")]
    SameName,
    /// More, or deeper, than an offer can hold.
    #[error(transparent)]
    Manifest(#[from] crate::ManifestError),
    /// Anything else that the kernel says.
    #[error("{}", std::io::Error::from(*.0))]
    Other(Errno),
}

impl Error {
    /// An error of ours.
    pub(crate) fn new(doing: &'static str, path: impl AsRef<[u8]>, problem: Problem) -> Self {
        Self {
            doing,
            path: printable(path.as_ref()),
            problem,
        }
    }

    /// For `map_err`: what the kernel said about `path`.
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
