//! Files by scp and rsync over ssh, with a server and keys made for one run: from memory to memory where there is a file
//! system for that.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use airdma_link::measure::Link;
use airdma_link::{LinkError, Side, ipv4};

use super::taken::Sample;
use super::transport::limit;
use crate::tools;

const PORT: u16 = 8_722;
/// Where sshd's unprivileged half lives; a host whose sshd never ran has none.
const PRIVILEGES: &str = "/run/sshd";

/// A file, and what two hosts need to know each other. Gone when this is dropped.
struct Files {
    folder: PathBuf,
    made_privileges: bool,
}

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
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        let mut files = Files {
            folder,
            made_privileges: false,
        };
        files.made_privileges = fs::create_dir(PRIVILEGES).is_ok();
        fs::create_dir(files.path("to"))?;
        File::create(files.path("file"))?.set_len(bytes)?;
        for name in ["host", "user"] {
            files.make_key(name)?;
        }
        files.configure()?;
        Ok(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn make_key(&self, name: &str) -> io::Result<()> {
        let mut command = Command::new("ssh-keygen");
        command
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(self.path(name));
        let made = command.stdin(Stdio::null()).status()?;
        match made.success() {
            true => Ok(()),
            false => Err(io::Error::other("ssh-keygen makes no key")),
        }
    }

    fn configure(&self) -> io::Result<()> {
        let address = ipv4(Side::B);
        let [host, user, known] = ["host", "user.pub", "known"].map(|name| self.word(name));
        let server = format!(
            "ListenAddress {address}\nPort {PORT}\nHostKey {host}\nAuthorizedKeysFile {user}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n"
        );
        fs::write(self.path("sshd_config"), server)?;
        let client = format!(
            "Host b\n HostName {address}\n Port {PORT}\n User root\n IdentityFile {}\n IdentitiesOnly yes\n HostKeyAlias b\n \
             UserKnownHostsFile {known}\n GlobalKnownHostsFile none\n StrictHostKeyChecking yes\n BatchMode yes\n",
            self.word("user")
        );
        fs::write(self.path("ssh_config"), client)?;
        let public = fs::read_to_string(self.path("host.pub"))?;
        fs::write(self.path("known"), format!("b {public}"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        if self.made_privileges {
            let _ = fs::remove_dir(PRIVILEGES);
        }
    }
}

/// The program that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copier {
    Scp,
    Rsync,
}

/// Copies a file from A to B, as a user would who waits for the prompt: keys, the copy, and the end of it.
pub fn copy(link: &Link, what: Copier, bytes: u64) -> Result<Sample, LinkError> {
    let failed = |error: io::Error| LinkError::Asked(format!("preparing files and keys: {error}"));
    let files = Files::new(bytes).map_err(failed)?;
    let missing = || LinkError::Asked("sshd is not installed".into());
    // It starts itself again for each connection, for which it has to know where it is.
    let sshd = tools::find("sshd").ok_or_else(missing)?;
    let configuration = files.word("sshd_config");
    let serve = ["-D", "-e", "-f", &configuration];
    let server = link.start(Side::B, &sshd.to_string_lossy(), &serve)?;
    if !server.listens(PORT) {
        return Err(LinkError::Asked("sshd does not listen".into()));
    }
    let [configuration, file] = ["ssh_config", "file"].map(|name| files.word(name));
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
    let arrived = files.path("to").join("file").metadata();
    if arrived.is_ok_and(|arrived| arrived.len() != bytes) {
        return Err(LinkError::Asked(format!("{program} copied another length")));
    }
    let cpu_s = client.cpu_s + server.stopped()?;
    Ok(Sample::moved(bytes as f64, seconds, cpu_s))
}
