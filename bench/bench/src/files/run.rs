//! One copy, on a link of its own.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use airdma_link::measure::{Link, TRAFFIC, target};
use airdma_link::{LinkError, Options as LinkOptions};
use anyhow::Context;
use blake3::Hash;

use super::content::{Content, digest};
use super::peer::{Peer, iperf3};
use super::taken::Sample;
use super::wire::Wire;
use crate::tools;

/// Seconds that measure the line rate.
const LINE_S: u32 = 3;
const SECOND_BINS: usize = 50;

/// Folder of the copied files: the source in `files`, the copy in `to`. Removed on drop.
pub struct Place {
    folder: PathBuf,
    /// Folders in `gone`.
    gone: u32,
    /// Content of `files`, with its checksum.
    made: Option<(Content, Hash)>,
}

impl Place {
    pub fn new(within: &Path) -> anyhow::Result<Place> {
        let folder = within.join(format!("airdma-files-{}", std::process::id()));
        let making = || format!("making {}: choose another --folder", folder.display());
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(making)?;
        let (gone, made) = (0, None);
        Ok(Place { folder, gone, made })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn word(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Makes an empty folder for ssh keys.
    pub fn keys(&self) -> io::Result<PathBuf> {
        let keys = self.folder.join("keys");
        let _ = fs::remove_dir_all(&keys);
        fs::create_dir(&keys)?;
        Ok(keys)
    }

    /// Makes `content` in `files`; returns its checksum.
    ///
    /// A second copy is written and cleared before the first sample. On a virtual machine the first
    /// access to memory takes it from the host, and airdma's first sample would pay for the page
    /// cache of the copy.
    fn make(&mut self, content: Content) -> io::Result<Hash> {
        if let Some((made, hash)) = self.made
            && made == content
        {
            return Ok(hash);
        }
        self.made = None;
        let files = self.folder.join("files");
        remove(&files)?;
        content.make(&files)?;
        let hash = digest(&files)?;
        let arrived = self.folder.join("to");
        fs::create_dir_all(&arrived)?;
        content.make(&arrived.join("files"))?;
        self.made = Some((content, hash));
        Ok(hash)
    }

    /// Resets the state: nothing has arrived, no peer is known, and the disk is idle.
    ///
    /// Many files are kept aside until the end: for minutes after they were removed, an ext4
    /// without a journal looks at each of their inodes before it takes another, and the next peer
    /// would pay for that.
    fn clear(&mut self) -> io::Result<()> {
        let (to, gone) = (self.folder.join("to"), self.folder.join("gone"));
        if to.join("files").is_dir() {
            fs::create_dir_all(&gone)?;
            fs::rename(&to, gone.join(self.gone.to_string()))?;
            self.gone += 1;
        }
        for name in ["to", "home-a", "home-b"] {
            remove(&self.folder.join(name))?;
            fs::create_dir(self.folder.join(name))?;
        }
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        let folder = File::open(&self.folder)?;
        // SAFETY: the call takes a number only, of an open file.
        match unsafe { libc::syncfs(folder.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match path.is_dir() {
        true => fs::remove_dir_all(path),
        false if path.exists() => fs::remove_file(path),
        false => Ok(()),
    }
}

/// Copies once and compares the copy. A failure is a result.
pub fn sample(
    airdma: &Path,
    options: &LinkOptions,
    peer: Peer,
    content: Content,
    place: &mut Place,
) -> anyhow::Result<Sample> {
    let expected = place.make(content).context("making files")?;
    place.clear().context("making room")?;
    let link = match options.plain {
        true => Link::new(airdma, options)?,
        false => Link::in_use(airdma, options)?,
    };
    let began = Instant::now();
    // An emulated radio's end is a veth to programs, so airdma is told that it is wireless.
    let air = if options.plain { "auto" } else { "1" };
    let took = peer.copy(&link, airdma, air, content, place);
    let copying_s = began.elapsed().as_secs_f64();
    place.sync().context("writing to the disk")?;
    let more_s = began.elapsed().as_secs_f64() - copying_s;
    let checked = took.and_then(|took| {
        let arrived = digest(&place.folder.join("to/files"));
        match arrived {
            Ok(arrived) if arrived == expected => Ok(took),
            Ok(_) => Err(LinkError::Asked("what arrived is something else".into())),
            Err(error) => Err(LinkError::Asked(format!("what arrived: {error}"))),
        }
    });
    let sample = match checked {
        Ok(took) => Sample::moved(content.bytes(), took.seconds, more_s, took.cpu_s),
        Err(error) => Sample {
            error: Some(error.to_string()),
            complaints: link.complaints(),
            ..Sample::default()
        },
    };
    place.clear().context("making room")?;
    Ok(sample)
}

/// Rate that the link carries, in Mb/s: the best second of bare UDP over a radio, iperf3's TCP over
/// a veth.
pub fn line(airdma: &Path, wire: &Wire) -> anyhow::Result<Option<f64>> {
    let options = wire.options(1);
    if wire.profile.is_none() {
        if tools::find("iperf3").is_none() {
            return Ok(None);
        }
        return Ok(Some(iperf3(&Link::new(airdma, &options)?, LINE_S)?));
    }
    let link = Link::new(airdma, &options)?;
    let port = airdma_link::measure::PORT.to_string();
    let receive = [&TRAFFIC[..], &["udp-receive", "--port", &port]].concat();
    let (to, seconds) = (target(), LINE_S.to_string());
    let send = ["udp-send", "--to", &to, "--seconds", &seconds];
    let send = [&TRAFFIC[..], &send].concat();
    let [_, came] = link.flow(airdma, &receive, &send)?;
    Ok(Some(came.best_mbit(SECOND_BINS)))
}

/// Kind of file system of a folder, by `stat`.
pub fn file_system(folder: &Path) -> String {
    let mut command = std::process::Command::new("stat");
    let output = command.args(["-f", "-c", "%T"]).arg(folder).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok()
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".into())
}

#[cfg(test)]
mod tests {
    use super::super::content::SMALL;
    use super::*;

    #[test]
    fn memory_of_the_copy_is_in_use_before_the_first_sample() {
        let mut place = Place::new(&std::env::temp_dir()).unwrap();
        for content in SMALL {
            let hash = place.make(content).unwrap();
            let arrived = place.folder.join("to/files");
            assert_eq!(digest(&arrived).unwrap(), hash, "{}", content.name);
            place.clear().unwrap();
            assert!(!arrived.exists(), "{}", content.name);
            // Each sample leaves memory that was in use.
            assert_eq!(place.make(content).unwrap(), hash);
            assert!(!arrived.exists(), "{}", content.name);
        }
    }
}
