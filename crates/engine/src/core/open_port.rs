//! The port of a device, as its configuration asks for it: sockets, or whole frames.

use super::Core;
use super::state::addresses_of;
use crate::host::gids::GidEntry;
use crate::host::neighbour;
use crate::sharing::runtime_dir;
use crate::sharing::steering::{self, JoinError, Steering};
use crate::{Error, PortKind};
use airdma_port::impair::Impaired;
use airdma_port::local::{LocalPort, Meeting};
use airdma_port::{BindError, PacketPort, Port, UdpConfig, UdpPort};
use airdma_wire::{Bth, ICRC_LEN, Neighbour};
use std::net::IpAddr;
use std::sync::Arc;

/// A port, and what is shared with other processes.
pub(super) type Opened = (Box<dyn Port>, Option<Arc<Steering>>);

impl Core {
    /// What the device is configured for, and what it shares with other processes.
    pub(super) fn open_port(&self, rows: &[GidEntry]) -> Result<Opened, Error> {
        match self.config.port {
            PortKind::Udp => self.open_sockets(rows),
            PortKind::Packet => {
                let port = self.open_packet_port(rows)?;
                Ok((self.impaired(port), None))
            }
        }
    }

    /// Frames of the interface, for this process alone.
    fn open_packet_port(&self, rows: &[GidEntry]) -> Result<PacketPort, Error> {
        let refused = |errno, message: String| Error::System {
            errno,
            message: format!("AIRDMA_PORT=packet: {message}"),
        };
        if self.config.bundles {
            let message = "bundles (AIRDMA_AGGREGATE=datagrams) leave in IP fragments, which this port does not send";
            return Err(refused(libc::EINVAL, message.into()));
        }
        let index = self.info.interface_index;
        let resolver = neighbour::NextHops::new(index)
            .map_err(|error| Error::system("asking the kernel for neighbours", &error))?;
        let port =
            PacketPort::bind(&addresses_of(rows), index, Box::new(resolver)).map_err(|error| {
                let text = match error.errno() {
                    libc::EADDRINUSE => format!("an address is this port's alone: {error}"),
                    _ => error.to_string(),
                };
                refused(error.errno(), text)
            })?;
        let packet_len = self.info.path_mtu.bytes() as usize + Bth::LEN + ICRC_LEN;
        let most = port.capabilities().datagram_bytes_max;
        if packet_len > most {
            let message = format!(
                "packets of the path MTU (AIRDMA_MTU) have {packet_len} bytes, and frames of {} hold {most}",
                self.info.interface
            );
            return Err(refused(libc::EINVAL, message));
        }
        Ok(port)
    }

    fn impaired(&self, port: impl Port + 'static) -> Box<dyn Port> {
        match self.config.impairment {
            None => Box::new(port),
            Some(impairment) => Box::new(Impaired::new(port, impairment)),
        }
    }

    /// The sockets; with other processes, where there can be any, and else for this one alone.
    fn open_sockets(&self, rows: &[GidEntry]) -> Result<Opened, Error> {
        let addresses = addresses_of(rows);
        let config = UdpConfig {
            segmentation: self.config.segmentation,
            ..UdpConfig::default()
        };
        let bind_error = |error: BindError| Error::System {
            errno: error.errno(),
            message: error.to_string(),
        };
        let mut no_registry = None;
        let steering = match Steering::join(self.info.interface_index, config.port) {
            Ok(steering) => Some(steering),
            Err(JoinError::Locked(process)) => {
                return Err(bind_error(steering::locked(&addresses, process)));
            }
            // Without a registry, either this process is the only one at the addresses, or the bind
            // fails.
            Err(JoinError::Impossible(error)) => {
                no_registry = Some(error);
                None
            }
        };
        let open = || {
            let config = UdpConfig {
                share: steering.is_some(),
                ..config.clone()
            };
            UdpPort::bind_table(&addresses, self.info.interface_index, config)
        };
        let port = match &steering {
            Some(steering) => steering.bind(&addresses, open),
            None => open(),
        };
        let port = port.map_err(|error| match &no_registry {
            Some(reason) if error.errno() == libc::EADDRINUSE => Error::System {
                errno: error.errno(),
                message: format!("{error}. There is no registry to share it by: {reason}"),
            },
            Some(_) | None => bind_error(error),
        })?;
        Ok((self.with_local(port, &addresses), steering))
    }

    /// The port; with a way through memory to processes of this host, if that is wanted and there
    /// is a directory in which they can meet.
    fn with_local(&self, port: UdpPort, addresses: &[Option<IpAddr>]) -> Box<dyn Port> {
        let meeting = || Meeting::open(&runtime_dir::shared_directory().ok()?).ok();
        match self.bell.as_ref().and_then(|bell| Some((bell, meeting()?))) {
            None => self.impaired(port),
            Some((bell, meeting)) => {
                let addresses = addresses.iter().map(|address| address.map(Neighbour::from));
                let addresses: Vec<_> = addresses.collect();
                let bell = Arc::clone(bell);
                self.impaired(LocalPort::new(port, &addresses, meeting, bell))
            }
        }
    }
}
