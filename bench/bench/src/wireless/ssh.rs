//! Files by scp and rsync over ssh: from memory to memory if there is a file system for that.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use airdma_link::measure::Link;
use airdma_link::{LinkError, Side};

use super::taken::Sample;
use super::transport::limit;
use crate::ssh::Ssh;

/// A file and its copy's folder. Removed on drop.
struct Files(PathBuf);

impl Files {
    fn new(bytes: u64) -> io::Result<Files> {
        let memory = Path::new("/dev/shm");
        let base = match memory.is_dir() {
            true => memory.into(),
            false => std::env::temp_dir(),
        };
        let folder = base.join(format!("airdma-wireless-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder)?;
        let files = Files(folder);
        fs::set_permissions(&files.0, Permissions::from_mode(0o700))?;
        fs::create_dir(files.0.join("to"))?;
        File::create(files.0.join("file"))?.set_len(bytes)?;
        Ok(files)
    }

    fn word(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copier {
    Scp,
    Rsync,
}

/// Copies a file from A to B, as a user who waits for the prompt measures it: keys, copy, and end.
pub fn copy(link: &Link, what: Copier, bytes: u64) -> Result<Sample, LinkError> {
    let failed = |error: io::Error| LinkError::Asked(format!("preparing files and keys: {error}"));
    let files = Files::new(bytes).map_err(failed)?;
    let ssh = Ssh::new(&files.0).map_err(failed)?;
    let server = ssh.serve(link)?;
    let (configuration, file) = (ssh.client(), files.word("file"));
    let to = format!("b:{}/", files.word("to"));
    let by_ssh = format!("ssh -F {configuration}");
    let (program, words) = match what {
        Copier::Scp => ("scp", vec!["-q", "-F", &configuration, &file, &to]),
        Copier::Rsync => (
            "rsync",
            vec!["--whole-file", "--inplace", "-e", &by_ssh, &file, &to],
        ),
    };
    let began = Instant::now();
    let client = link.start(Side::A, program, &words)?.ended(limit(bytes))?;
    let seconds = began.elapsed().as_secs_f64();
    let arrived = files.0.join("to/file").metadata();
    if arrived.is_ok_and(|arrived| arrived.len() != bytes) {
        return Err(LinkError::Asked(format!("{program} copied another length")));
    }
    let cpu_s = client.cpu_s + server.stopped()?;
    Ok(Sample::moved(bytes as f64, seconds, cpu_s))
}
