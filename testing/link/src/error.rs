//! Errors while a link is made, used or ended.

use std::io;

use airdma_lab::LabError;

/// Reason why a link cannot be made or used. The text names the attempt and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A profile or a trace that no link can have.
    #[error("{file}:{line}: {what}")]
    Text {
        /// The file, or the name of a profile that comes with airdma.
        file: String,
        /// Counted from 1; 0 if it is not about a line.
        line: usize,
        /// The fault, and what would be valid.
        what: String,
    },
    /// Something the caller asked for cannot be.
    #[error("{0}")]
    Asked(String),
    /// A step was refused.
    #[error("{what}: {error}{hint}")]
    Refused {
        /// The step.
        what: String,
        /// Error of the kernel.
        error: io::Error,
        /// Remedy, on a line of its own, or nothing.
        hint: &'static str,
    },
    /// Namespaces are not to be had, or not as they should be.
    #[error(transparent)]
    Lab(#[from] LabError),
}

/// Gives an error of the kernel the name of what was tried.
pub(crate) trait Tried<T> {
    fn tried(self, what: impl Into<String>) -> Result<T, LinkError>;
}

impl<T> Tried<T> for io::Result<T> {
    fn tried(self, what: impl Into<String>) -> Result<T, LinkError> {
        self.map_err(|error| {
            let what = what.into();
            let hint = hint(&what, &error);
            LinkError::Refused { what, error, hint }
        })
    }
}

/// Explains terse errors of the kernel.
fn hint(what: &str, error: &io::Error) -> &'static str {
    let number = error.raw_os_error();
    let missing = [libc::ENOENT, libc::EOPNOTSUPP];
    let is_missing = number.is_some_and(|number| missing.contains(&number));
    if is_missing && what.contains("HTB") {
        "\n  this kernel has no HTB (CONFIG_NET_SCH_HTB): modprobe sch_htb, as root"
    } else if is_missing && what.contains("nftables") {
        "\n  this kernel has no nftables for devices (CONFIG_NF_TABLES_NETDEV, CONFIG_NFT_NUMGEN): modprobe nf_tables nft_numgen, as root"
    } else if number == Some(libc::EEXIST) && what.contains("HTB") {
        "\n  another queue shapes this interface already: `tc qdisc del dev INTERFACE root`, or `airdma link down` of the other link"
    } else if number == Some(libc::EPERM) {
        "\n  this needs CAP_NET_ADMIN in the namespace: run it with sudo, or in `unshare -Urn`"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_said() {
        let refused = |what: &str, number: i32| {
            let error: io::Result<()> = Err(io::Error::from_raw_os_error(number));
            error.tried(what).unwrap_err().to_string()
        };
        let said = refused("adding HTB at air0 of host A", libc::ENOENT);
        assert!(
            said.starts_with("adding HTB at air0 of host A: No such file"),
            "{said}"
        );
        assert!(said.contains("modprobe sch_htb"), "{said}");
        let said = refused(
            "preparing loss by nftables at air0 of host B",
            libc::EOPNOTSUPP,
        );
        assert!(said.contains("CONFIG_NF_TABLES_NETDEV"), "{said}");
        let said = refused("adding HTB at eth0 of host A", libc::EPERM);
        assert!(said.contains("CAP_NET_ADMIN"), "{said}");
        let said = refused("adding HTB at eth0 of host A", libc::EEXIST);
        assert!(said.contains("tc qdisc del"), "{said}");
    }
}
