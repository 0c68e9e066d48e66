//! The way of a packet out of this host.

use airdma_port::Destination;
use airdma_transport::Path;
use airdma_wire::Neighbour;

/// Where a path leads from this host, which has these addresses.
pub(crate) fn destination(path: &Path, rows: &[Option<Neighbour>]) -> Destination {
    let local = rows.get(usize::from(path.sgid_index)).copied().flatten();
    Destination {
        // A port drops what leaves from an address that is gone.
        address: local.map_or(path.gid.to_ip().into(), |local| local.peer(path.gid)),
        source_index: path.sgid_index,
        tos: path.traffic_class,
        hop_limit: path.hop_limit,
        flow_label: path.flow_label,
        bundles: false,
    }
}
