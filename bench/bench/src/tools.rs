//! Other measured programs, with their Debian packages.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::peer::FOUR_CORES;

/// Programs, with their packages in Debian 12.
pub const PACKAGES: [(&str, &str); 26] = [
    ("ib_send_bw", "perftest"),
    ("ib_send_lat", "perftest"),
    ("ib_write_bw", "perftest"),
    ("ib_write_lat", "perftest"),
    ("ib_read_bw", "perftest"),
    ("ib_read_lat", "perftest"),
    ("iperf3", "iperf3"),
    ("sockperf", "sockperf"),
    ("ucx_perftest", "ucx-utils"),
    ("fi_pingpong", "libfabric-bin"),
    ("cmtime", "rdmacm-utils"),
    ("nft", "nftables"),
    ("nginx", "nginx-light"),
    ("wrk", "wrk"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("sipp", "sip-tester"),
    ("rsync", "rsync"),
    ("ssh", "openssh-client"),
    ("scp", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("sshd", "openssh-server"),
    ("tar", "tar"),
    ("tcp_bbr", "a kernel with the module tcp_bbr"),
    ("taskset", "util-linux"),
    (FOUR_CORES, "a machine with four cores"),
];

/// Package of `program`.
pub fn package(program: &str) -> &'static str {
    let found = PACKAGES.iter().find(|(name, _)| *name == program);
    found.map_or("unknown", |(_, package)| package)
}

/// Path of a program; none if it is not installed.
///
/// TCP's BBR counts as a program, which is installed if the kernel has it; so do four cores.
pub fn find(program: &str) -> Option<PathBuf> {
    if program == "tcp_bbr" {
        let file = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        let algorithms = std::fs::read_to_string(file).unwrap_or_default();
        let has = algorithms
            .split_ascii_whitespace()
            .any(|name| name == "bbr");
        return has.then(|| file.into());
    }
    if program == FOUR_CORES {
        return (airdma_lab::cores().len() >= 4).then(|| "/sys/devices/system/cpu".into());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    // A user's PATH often lacks the sbin folders, where Debian keeps nft.
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(sbin)
        .map(|folder| folder.join(program))
        .find(|file| can_run(file))
}

fn can_run(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
