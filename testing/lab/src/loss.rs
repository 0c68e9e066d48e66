//! Random loss by nftables on the receiving side, which drops packets of a veth before any protocol
//! sees them.

use std::io;
use std::process::{Command, Stdio};

use crate::error::{LabError, Tried};
use crate::namespace::Namespace;
use crate::topology::INTERFACE;

/// Drops one of `one_in` packets that arrive; none if 0.
pub fn set(namespace: &Namespace, one_in: u32) -> Result<(), LabError> {
    // The table may not exist: it is added before it is deleted.
    let mut rules = String::from("add table netdev airdma\ndelete table netdev airdma\n");
    if one_in > 0 {
        rules += &format!(
            "table netdev airdma {{ chain loss {{ type filter hook ingress device {INTERFACE} priority 0; \
             numgen random mod {one_in} == 0 counter drop\n}}\n}}\n"
        );
    }
    namespace
        .within(|| nft(&rules))
        .tried("losing packets by nft (package nftables)")
}

fn nft(rules: &str) -> io::Result<()> {
    // A user's PATH often lacks the sbin folders, where Debian keeps nft.
    let found = ["nft", "/usr/sbin/nft", "/sbin/nft"]
        .iter()
        .find_map(|nft| {
            let mut command = Command::new(nft);
            let run = command.arg(rules).stdin(Stdio::null()).output();
            run.ok()
        });
    let output = found.ok_or(io::ErrorKind::NotFound)?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(complaint.trim().to_owned()))
}
