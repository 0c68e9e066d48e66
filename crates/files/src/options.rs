//! The receiver's options: what to keep of files, and what to do about existing names.

/// The receiver's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What to do when a name exists.
    pub clash: Clash,
    /// Permissions of new files and directories.
    pub permissions: Permissions,
    /// Whether to keep modification times.
    pub times: bool,
    /// Whether to keep holes; otherwise space is allocated for them.
    pub holes: bool,
    /// Which symbolic links to create.
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

/// Permissions of new files and directories; setuid, setgid and sticky bits are never set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    /// Those offered, masked by the receiver's umask (or the default ACL of a directory).
    Masked,
    /// Those offered, whatever the umask.
    Exact,
    /// The default ones of new files.
    New,
}

impl Permissions {
    /// Whether the offered permissions count.
    pub(crate) fn are_kept(self) -> bool {
        self != Self::New
    }
}

/// What to do when an offered name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// Refuse the whole offer.
    Refuse,
    /// Choose another name at the top: "name (1)".
    Rename,
    /// Merge directories, and replace files, each by one rename.
    Overwrite,
    /// Merge directories and skip files of the same size and time.
    ///
    /// Any other existing name refuses the whole offer.
    SkipSame,
}

/// Which symbolic links to create. Links are created after all files, and no write ever follows
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// Refuse an offer with a link.
    Refuse,
    /// Leave links out.
    Skip,
    /// Leave out and report links that lead, or could lead, out of the receiving directory.
    ///
    /// Those are absolute ones, ones with more ".." in front than directories above them, and ones
    /// with ".." behind a name (which may be a link itself).
    Inside,
    /// Create all links.
    All,
}

impl Symlinks {
    /// Whether a link to `target`, below `depth` directories, is created.
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
            // In front this is the root; further behind, two slashes count as one.
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
