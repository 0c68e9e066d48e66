//! The open directories from the top down to the current position of a walk.
//!
//! Entries come in the order of a walk, so the next directory is mostly the same or a near one: one
//! `openat` for each directory of the tree, however many files are in it. Each step opens one name
//! in a directory that is open already and follows no symbolic link, so a concurrent change of the
//! tree cannot lead it elsewhere.

use crate::{Error, Manifest};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The open directories, from the top; at most [`crate::Limits::depth_max`] of them.
#[derive(Debug, Default)]
pub(crate) struct Descent {
    open: Vec<(u32, OwnedFd)>,
}

impl Descent {
    /// Opens the directory that is entry `directory`.
    ///
    /// `step` opens one entry in its parent; the parent is `None` at the top.
    pub fn reach(
        &mut self,
        manifest: &Manifest,
        directory: u32,
        mut step: impl FnMut(Option<BorrowedFd<'_>>, u32) -> Result<OwnedFd, Error>,
    ) -> Result<BorrowedFd<'_>, Error> {
        let mut chain: Vec<u32> = std::iter::once(directory)
            .chain(manifest.ancestors(directory))
            .collect();
        chain.reverse();
        let common = self
            .open
            .iter()
            .zip(&chain)
            .take_while(|((open, _), wanted)| open == *wanted)
            .count();
        self.open.truncate(common);
        for &index in &chain[common..] {
            let next = step(self.open.last().map(|(_, fd)| fd.as_fd()), index)?;
            self.open.push((index, next));
        }
        let (_, fd) = self.open.last().expect("the chain has one link at least");
        Ok(fd.as_fd())
    }
}
