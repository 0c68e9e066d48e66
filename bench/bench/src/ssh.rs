//! An sshd for one run, with keys and settings of its own: the host's and the user's are not read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use airdma_link::measure::{Link, Running};
use airdma_link::{LinkError, Side, ipv4};

use crate::tools;

const PORT: u16 = 8_722;
/// Folder of sshd's unprivileged process; a host whose sshd never ran has none.
const PRIVILEGES: &str = "/run/sshd";

/// Keys and settings of the two hosts of a link, as files in a folder. B is called `b`.
pub struct Ssh {
    folder: PathBuf,
    made_privileges: bool,
}

impl Ssh {
    /// Writes them to an existing folder.
    pub fn new(folder: &Path) -> io::Result<Ssh> {
        let ssh = Ssh {
            folder: folder.into(),
            made_privileges: fs::create_dir(PRIVILEGES).is_ok(),
        };
        for name in ["host", "user"] {
            ssh.make_key(name)?;
        }
        ssh.configure()?;
        Ok(ssh)
    }

    /// The client's settings, for `ssh -F`.
    pub fn client(&self) -> String {
        self.word("ssh_config")
    }

    /// Starts sshd on B.
    pub fn serve(&self, link: &Link) -> Result<Running, LinkError> {
        let missing = || LinkError::Asked("sshd is not installed".into());
        // sshd starts itself again for each connection and needs its own path.
        let sshd = tools::find("sshd").ok_or_else(missing)?;
        let configuration = self.word("sshd_config");
        let serve = ["-D", "-e", "-f", &configuration];
        let server = link.start(Side::B, &sshd.to_string_lossy(), &serve)?;
        match server.listens(PORT) {
            true => Ok(server),
            false => Err(LinkError::Asked("sshd does not listen".into())),
        }
    }

    fn word(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn make_key(&self, name: &str) -> io::Result<()> {
        let mut command = Command::new("ssh-keygen");
        command
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(self.folder.join(name));
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
        fs::write(self.folder.join("sshd_config"), server)?;
        let client = format!(
            "Host b\n HostName {address}\n Port {PORT}\n User root\n IdentityFile {}\n IdentitiesOnly yes\n HostKeyAlias b\n \
             UserKnownHostsFile {known}\n GlobalKnownHostsFile none\n StrictHostKeyChecking yes\n BatchMode yes\n",
            self.word("user")
        );
        fs::write(self.folder.join("ssh_config"), client)?;
        let public = fs::read_to_string(self.folder.join("host.pub"))?;
        fs::write(self.folder.join("known"), format!("b {public}"))
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        if self.made_privileges {
            let _ = fs::remove_dir(PRIVILEGES);
        }
    }
}

/// Reason why no sshd can run here, if it cannot.
pub fn missing() -> Option<String> {
    // SAFETY: reads the user id.
    let is_root = unsafe { libc::geteuid() } == 0;
    let groups = fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
    let may_set_groups = is_root && groups.trim() == "allow";
    (!may_set_groups).then(|| "sshd needs root outside of a user namespace".into())
}
