//! Requests to the kernel: interfaces, addresses, neighbours, routes, and their changes.

pub(crate) mod devices;
pub(crate) mod gids;
pub(crate) mod interface;
pub(crate) mod link_monitor;
pub(crate) mod neighbour;
pub(crate) mod path;
pub(crate) mod presence;
pub(crate) mod recent_paths;
