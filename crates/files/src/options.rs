//! What the receiver wants kept, and what it does about names that exist.

/// The receiver's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What to do when a name exists.
    pub clash: Clash,
    /// Which permissions files and directories get.
    pub permissions: Permissions,
    /// Keep times of modification.
    pub times: bool,
    /// Keep holes; otherwise room for them is taken.
    pub holes: bool,
    /// Which symbolic links to make.
    pub symlinks: Symlinks,
}

impl Default for Options {
    fn default() -> Self {
        let (clash, symlinks) = (Clash::Refuse, Symlinks::Inside);
        Self {
            clash,
            permissions: Permissions::Masked,
            times: true,
            holes: true,
            symlinks,
        }
    }
}

/// Which permissions files and directories get; setuid, setgid and sticky never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// Those that were offered, less what the receiver's umask (or the default ACL of a directory) takes from new files.
    Masked,
    /// Those that were offered, whatever the umask is.
    Exact,
    /// Those of new files.
    New,
}

impl Permissions {
    /// Whether what was offered counts.
    pub(crate) fn are_kept(self) -> bool {
        self != Self::New
    }
}

/// What to do when a name that is offered exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// Take nothing at all.
    Refuse,
    /// Another name at the top: "name (1)".
    Rename,
    /// Directories are merged, and files replaced, each by one rename.
    Overwrite,
    /// Directories are merged, what has the same size and time stays and is not sent, and anything else that exists refuses all.
    SkipSame,
}

/// Which symbolic links to make. A link is made after all files, and nothing is ever written through one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// An offer with a link is refused.
    Refuse,
    /// Links are left out.
    Skip,
    /// Links that lead, or could lead, out of the receiving directory are left out and told: absolute ones, and those
    /// with more ".." in front than directories above them, or with ".." behind a name (which may be a link again).
    Inside,
    /// Wherever they lead.
    All,
}

impl Symlinks {
    /// Whether a link to `target`, below `depth` directories, is made.
    pub(crate) fn makes(self, target: &[u8], depth: u8) -> bool {
        match self {
            Self::Refuse | Self::Skip => false,
            Self::All => true,
            Self::Inside => is_inside(target, depth),
        }
    }
}

fn is_inside(target: &[u8], depth: u8) -> bool {
    let mut ups = 0;
    let mut down = false;
    for name in target
        .split(|&byte| byte == b'/')
        .filter(|name| *name != b".")
    {
        match name {
            // In front this is the root; behind, two slashes are one.
            b"" if target[0] == b'/' => return false,
            b"" => {}
            b".." if down => return false,
            b".." => ups += 1,
            _ => down = true,
        }
    }
    ups <= usize::from(depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_could_lead_out_are_known() {
        for (target, depth) in [
            ("a", 0),
            ("../a", 1),
            (".", 0),
            ("a//b", 0),
            ("./../../a/b", 2),
            ("a/", 0),
        ] {
            assert!(is_inside(target.as_bytes(), depth), "{target}");
        }
        for (target, depth) in [
            ("/etc", 9),
            ("..", 0),
            ("../../a", 1),
            ("a/..", 5),
            ("./a/../../b", 5),
            ("//", 1),
        ] {
            assert!(!is_inside(target.as_bytes(), depth), "{target}");
        }
    }
}
