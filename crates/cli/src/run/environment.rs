//! Environment variables that decide whether programs use the devices: airdma's own, and those of
//! libraries built on verbs.

/// A remark on a variable that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// It is harmless; its purpose.
    Fine(&'static str),
    /// It keeps the program from the devices, or has no effect; what to do.
    Careful(String),
}

/// The effect of a variable, given the names of the existing devices; `None` if it does not matter.
pub fn remark(name: &str, value: &str, devices: &[String]) -> Option<Remark> {
    let ours = OURS.iter().find(|(known, _)| *known == name);
    if let Some((_, meaning)) = ours {
        return Some(Remark::Fine(meaning));
    }
    if name.starts_with("AIRDMA_") {
        let known: Vec<&str> = OURS.iter().map(|(known, _)| *known).collect();
        return Some(Remark::Careful(format!(
            "airdma knows no such variable; it knows {}",
            known.join(", ")
        )));
    }
    let first = devices.first().map_or("airdma_eth0", String::as_str);
    let words = || value.split(',').map(str::trim);
    let names_device = || {
        words().any(|word| {
            let word = word.trim_start_matches(['=', '^']);
            let device = word.split(':').next().unwrap_or(word);
            devices.iter().any(|known| known == device)
        })
    };
    let careful = |text: String| Some(Remark::Careful(text));
    match name {
        "UCX_NET_DEVICES" if value != "all" && !names_device() => {
            careful(format!("names no device; UCX_NET_DEVICES={first}:1 does"))
        }
        "UCX_TLS"
            if !words().any(|word| UCX_TRANSPORTS.iter().any(|known| word.starts_with(known))) =>
        {
            careful("has no RDMA transport; UCX_TLS=rc,ud,self,sm does".to_owned())
        }
        "NCCL_IB_DISABLE" if value != "0" => {
            careful("keeps NCCL from RDMA devices; unset it".to_owned())
        }
        "NCCL_IB_HCA" if !devices.iter().any(|device| value.contains(device.as_str())) => {
            careful(format!("names no device; NCCL_IB_HCA={first} does"))
        }
        "OMPI_MCA_pml" if value != "ucx" => {
            careful("keeps Open MPI from UCX; OMPI_MCA_pml=ucx lets it".to_owned())
        }
        "FI_PROVIDER" if !value.contains("verbs") => {
            careful("keeps libfabric from verbs; FI_PROVIDER=verbs lets it".to_owned())
        }
        "UCX_NET_DEVICES" | "UCX_TLS" => Some(Remark::Fine("what UCX uses")),
        "NCCL_IB_DISABLE" | "NCCL_IB_HCA" | "NCCL_IB_GID_INDEX" => {
            Some(Remark::Fine("what NCCL uses"))
        }
        "OMPI_MCA_pml" => Some(Remark::Fine("Open MPI over UCX")),
        "FI_PROVIDER" => Some(Remark::Fine("what libfabric uses")),
        "LD_PRELOAD" | "LD_LIBRARY_PATH" => Some(Remark::Fine("stays, behind what is set")),
        _ => None,
    }
}

/// Variables of airdma, and the effect of each.
const OURS: [(&str, &str); 25] = [
    ("AIRDMA_LIB", "where libairdma.so is"),
    (
        "AIRDMA_DAEMON",
        "the socket of the daemon whose devices are used (airdma daemon); or off",
    ),
    (
        "AIRDMA_IMPAIR",
        "damage on purpose: packets are lost, or worse",
    ),
    (
        "AIRDMA_WINDOW_BYTES",
        "ceiling of the window to one peer; or none",
    ),
    (
        "AIRDMA_PORT",
        "udp for sockets, packet for Ethernet frames (CAP_NET_RAW)",
    ),
    (
        "AIRDMA_LOCAL",
        "1 lets packets between processes of this host go through memory",
    ),
    (
        "AIRDMA_SEGMENTATION",
        "off makes one datagram of each packet",
    ),
    (
        "AIRDMA_AIR",
        "what airdma peers have beyond RoCEv2: auto, with reports and a rate on the air only; 1 everywhere; 0 none",
    ),
    (
        "AIRDMA_SACK",
        "1 offers airdma peers on the air what those on a wire agree on, and no more",
    ),
    (
        "AIRDMA_AGGREGATE",
        "in air mode: datagrams lets packets share datagrams of 64 KB; or segments",
    ),
    (
        "AIRDMA_BULK",
        "on Wi-Fi, or with AIRDMA_AIR=1: 1 lets all else go first",
    ),
    (
        "AIRDMA_RATE",
        "how fast such peers are sent to: buffers, latency, dctcp, dcqcn or window",
    ),
    (
        "AIRDMA_SECRET",
        "a file that the hosts share: all connections are encrypted and authenticated with it",
    ),
    (
        "AIRDMA_MTU",
        "path MTU of all devices, by IP fragments if need be",
    ),
    ("AIRDMA_LOOPBACK", "1 makes the loopback interface a device"),
    ("AIRDMA_LIDS", "1 gives ports LIDs"),
    ("AIRDMA_SOCKETS_LIB", "where libairdma_sockets.so is"),
    (
        "AIRDMA_SOCKETS_RULES",
        "which connections of `airdma sockets` may use RDMA",
    ),
    (
        "AIRDMA_SOCKETS_UDP",
        "1: long datagrams may use RDMA in airdma sockets",
    ),
    (
        "AIRDMA_SOCKETS_VERBOSE",
        "1 or 2: airdma sockets tells what it did",
    ),
    ("AIRDMA_TRACE", "verbs prints the calls"),
    (
        "AIRDMA_HOME",
        "where keys and known peers of file transfers are",
    ),
    ("AIRDMA_CODE", "the code of a receiver of files"),
    ("AIRDMA_QUEUE", "the socket of airdma serve"),
    ("AIRDMA_LINK_PEER", "the other host of airdma link"),
];

/// Prefixes of the names of UCX transports that use verbs, and of their aliases.
const UCX_TRANSPORTS: [&str; 4] = ["rc", "ud", "ib", "all"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_variable_is_known() {
        let documented = include_str!("../../../../docs/reference/variables.md");
        let names = documented.split('`').filter(|word| {
            word.strip_prefix("AIRDMA_").is_some_and(|rest| {
                rest.bytes()
                    .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
            })
        });
        let mut count = 0;
        for name in names {
            count += 1;
            assert!(OURS.iter().any(|(ours, _)| *ours == name), "{name}");
        }
        assert!(count >= OURS.len());
    }

    #[test]
    fn only_harmful_variables_are_reported() {
        let devices = ["airdma_eth0".to_owned()];
        let is_fine = |name: &str, value: &str| {
            remark(name, value, &devices).map(|remark| matches!(remark, Remark::Fine(_)))
        };
        for (name, value) in [
            ("AIRDMA_LOOPBACK", "1"),
            ("UCX_NET_DEVICES", "mlx5_0:1,airdma_eth0:1"),
            ("UCX_TLS", "sm,rc_verbs"),
            ("NCCL_IB_HCA", "=airdma_eth0"),
            ("OMPI_MCA_pml", "ucx"),
            ("FI_PROVIDER", "verbs;ofi_rxm"),
            ("LD_PRELOAD", "/a.so"),
        ] {
            assert_eq!(is_fine(name, value), Some(true), "{name}={value}");
        }
        for (name, value) in [
            ("AIRDMA_LOOPBAK", "1"),
            ("UCX_NET_DEVICES", "eth0"),
            ("UCX_TLS", "tcp,self"),
            ("NCCL_IB_DISABLE", "1"),
            ("NCCL_IB_HCA", "mlx5"),
            ("OMPI_MCA_pml", "ob1"),
            ("FI_PROVIDER", "tcp"),
        ] {
            assert_eq!(is_fine(name, value), Some(false), "{name}={value}");
        }
        assert_eq!(is_fine("HOME", "/"), None);
    }
}
