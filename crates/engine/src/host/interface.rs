//! Properties of a network interface, by `ioctl(2)` on any socket.
//!
//! This works in every network namespace, while `/sys/class/net` may show those of another one.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::Path;

/// A socket for requests about interfaces.
pub(crate) struct InterfaceQuery {
    socket: UdpSocket,
}

/// `ethtool_cmd` of `linux/ethtool.h`, the request that every driver answers without privilege.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct EthtoolCommand {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    duplex: u8,
    port: u8,
    phy_address: u8,
    transceiver: u8,
    autoneg: u8,
    mdio_support: u8,
    maxtxpkt: u32,
    maxrxpkt: u32,
    speed_hi: u16,
    eth_tp_mdix: u8,
    eth_tp_mdix_ctrl: u8,
    lp_advertising: u32,
    reserved: [u32; 2],
}

/// `vlan_ioctl_args` of `linux/if_vlan.h`.
#[repr(C)]
struct VlanArguments {
    cmd: i32,
    device: [u8; 24],
    vid: i32,
    rest: [u8; 20],
    qos: i16,
}

const SIOCGIFVLAN: libc::c_ulong = 0x8982;
const GET_VLAN_VID: i32 = 9;
const ETHTOOL_GSET: u32 = 1;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// Hardware types with a six-byte MAC address (`linux/if_arp.h`).
const ARPHRD_ETHER: u16 = 1;

impl InterfaceQuery {
    pub(crate) fn new() -> io::Result<Self> {
        // Any socket suffices; without IPv4 there is IPv6.
        let socket = UdpSocket::bind(("0.0.0.0", 0)).or_else(|_| UdpSocket::bind(("::", 0)))?;
        Ok(InterfaceQuery { socket })
    }

    /// MTU in bytes.
    pub(crate) fn mtu(&self, name: &str) -> io::Result<u32> {
        let mut request = request(name)?;
        self.call(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the kernel has filled in this member of the union, and any bytes are an integer.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        u32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// MAC address; zero if it has none.
    pub(crate) fn mac(&self, name: &str) -> io::Result<[u8; 6]> {
        let mut request = request(name)?;
        self.call(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: the kernel has filled in this member of the union, and any bytes are a sockaddr.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        if address.sa_family != ARPHRD_ETHER {
            return Ok([0; 6]);
        }
        Ok(std::array::from_fn(|index| address.sa_data[index] as u8))
    }

    /// Whether the kernel resolves addresses on the link (ARP, neighbour discovery).
    pub(crate) fn asks_for_addresses(&self, name: &str) -> io::Result<bool> {
        let mut request = request(name)?;
        self.call(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the kernel has filled in this member of the union, and any bytes are an integer.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        Ok(flags & (libc::IFF_NOARP | libc::IFF_LOOPBACK | libc::IFF_POINTOPOINT) == 0)
    }

    /// Speed in Mb/s, if the driver knows it.
    pub(crate) fn speed_mbps(&self, name: &str) -> Option<u32> {
        let mut command = EthtoolCommand {
            cmd: ETHTOOL_GSET,
            ..EthtoolCommand::default()
        };
        let mut request = request(name).ok()?;
        request.ifr_ifru.ifru_data = (&raw mut command).cast();
        self.call(SIOCETHTOOL, &mut request).ok()?;
        let speed = u32::from(command.speed_hi) << 16 | u32::from(command.speed);
        // -1 in 16 or 32 bits is "unknown".
        (speed != 0 && speed != u32::from(u16::MAX) && speed != u32::MAX).then_some(speed)
    }

    /// Its VLAN, if it is the interface of one.
    pub(crate) fn vlan(&self, name: &str) -> Option<u16> {
        // The name fits, and is not empty.
        request(name).ok()?;
        let mut arguments = VlanArguments {
            cmd: GET_VLAN_VID,
            device: [0; 24],
            vid: 0,
            rest: [0; 20],
            qos: 0,
        };
        for (to, from) in arguments.device.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        // SAFETY: this request reads and writes a `vlan_ioctl_args`.
        let result = unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                SIOCGIFVLAN as _,
                &raw mut arguments,
            )
        };
        (result == 0)
            .then(|| u16::try_from(arguments.vid).ok())
            .flatten()
    }

    fn call(&self, number: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: these requests read and write an ifreq (and what `ifru_data` points to, which
        // outlives the call).
        let result = unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                number as _,
                std::ptr::from_mut(request),
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: an ifreq is integers and arrays of them (and a pointer, for which null is fine).
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}
/// Whether an interface is one of 802.11's.
pub(crate) fn is_wireless(interface: &str) -> bool {
    Path::new("/sys/class/net")
        .join(interface)
        .join("phy80211")
        .exists()
}
