//! Address vectors: the path to a peer as C describes it, and address handles.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};

use airdma_engine::{self as engine, DeviceInfo, Gid, Path};

use crate::abi;
use crate::context::Context;
use crate::errno::Errno;
use crate::memory::Pd;
use crate::object::{Object, next_handle, zeroed};
use crate::port;
use crate::rdma::devices;

/// An address handle.
#[repr(C)]
pub struct Ah {
    c: UnsafeCell<abi::ibv_ah>,
    /// A copy, one pointer nearer than the engine's.
    path: Path,
    engine: Arc<engine::Ah>,
}

// SAFETY: `c` is the first field.
unsafe impl Object for Ah {
    type C = abi::ibv_ah;
}

impl Ah {
    /// The way to the destination.
    pub fn path(&self) -> Path {
        self.path
    }
}

/// `ibv_create_ah(3)`.
pub unsafe fn create(
    raw_pd: *mut abi::ibv_pd,
    attr: *mut abi::ibv_ah_attr,
) -> Result<*mut abi::ibv_ah, Errno> {
    // SAFETY: the caller's domain and struct.
    let (pd, attr) = unsafe { (Pd::of(raw_pd)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    let path = match devices::loopback(raw_pd, attr) {
        Some(path) => path,
        None => path_of(&without_lid(attr, pd.engine().device()))?,
    };
    pd.engine().device().wait_for_path(&path)?;
    let engine = pd.engine().create_ah(path)?;
    let c = UnsafeCell::new(abi::ibv_ah {
        context: pd.context(),
        pd: raw_pd,
        handle: next_handle(),
    });
    Ok(Box::new(Ah { c, path, engine }).into_raw())
}

/// `ibv_destroy_ah(3)`.
pub unsafe fn destroy(raw: *mut abi::ibv_ah) -> Result<(), Errno> {
    // SAFETY: the caller's handle, given back.
    unsafe {
        Ah::of(raw)?.engine.destroy()?;
        drop(Ah::take(raw));
    }
    Ok(())
}

/// `ibv_init_ah_from_wc(3)`: the way back to the sender of a datagram.
pub unsafe fn init_from_wc(
    context: *mut abi::ibv_context,
    port_num: u8,
    wc: *mut abi::ibv_wc,
    grh: *mut abi::ibv_grh,
    attr: *mut abi::ibv_ah_attr,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's objects; the GRH area may lie anywhere in a receive buffer.
    let (context, wc) = unsafe { (Context::of(context)?, wc.as_ref().ok_or(Errno::INVALID)?) };
    port::check_port(port_num)?;
    if attr.is_null() || grh.is_null() || wc.wc_flags & abi::IBV_WC_GRH == 0 {
        return Err(Errno::INVALID);
    }
    // SAFETY: the flag says that the 40 bytes are there.
    let area: [u8; 40] = unsafe { grh.cast::<[u8; 40]>().read_unaligned() };
    let path = path_back(&area, &context.device().current()).ok_or(Errno::INVALID)?;
    // SAFETY: the caller's struct.
    unsafe { attr.write(attr_of(&path)) };
    Ok(0)
}

/// `ibv_create_ah_from_wc(3)`.
pub unsafe fn create_from_wc(
    pd: *mut abi::ibv_pd,
    wc: *mut abi::ibv_wc,
    grh: *mut abi::ibv_grh,
    port_num: u8,
) -> Result<*mut abi::ibv_ah, Errno> {
    // SAFETY: plain integers; the rest are the caller's objects.
    unsafe {
        let mut attr: abi::ibv_ah_attr = zeroed();
        let context = Pd::of(pd)?.context();
        init_from_wc(context, port_num, wc, grh, &raw mut attr)?;
        create(pd, &raw mut attr)
    }
}

/// `ibv_resolve_eth_l2_from_gid`: the Ethernet address of the next hop, and the VLAN or 0xffff.
pub unsafe fn resolve_ethernet(
    context: *mut abi::ibv_context,
    attr: *mut abi::ibv_ah_attr,
    mac: *mut u8,
    vlan: *mut u16,
) -> Result<(), Errno> {
    // SAFETY: the caller's context and struct.
    let (context, attr) = unsafe { (Context::of(context)?, attr.as_ref().ok_or(Errno::INVALID)?) };
    if mac.is_null() {
        return Err(Errno::INVALID);
    }
    let found = context
        .device()
        .resolve(&path_of(&without_lid(attr, context.device()))?)?;
    // SAFETY: the caller's six bytes, and an integer unless it is NULL.
    unsafe {
        mac.cast::<[u8; 6]>().write(found.mac);
        if let Some(vlan) = vlan.as_mut() {
            *vlan = found.vlan.unwrap_or(u16::MAX);
        }
    }
    Ok(())
}

/// The path an address vector describes. RoCE needs the GRH part, the LID part means nothing (but
/// see [`without_lid`]).
pub fn path_of(attr: &abi::ibv_ah_attr) -> Result<Path, Errno> {
    if attr.is_global == 0 {
        return Err(Errno::INVALID);
    }
    port::check_port(attr.port_num)?;
    // SAFETY: every bit pattern is a GID.
    let gid = Gid(unsafe { attr.grh.dgid.raw });
    Ok(Path {
        gid,
        sgid_index: attr.grh.sgid_index,
        traffic_class: traffic_class_of(attr),
        hop_limit: attr.grh.hop_limit,
        flow_label: attr.grh.flow_label & FLOW_LABEL_MASK,
    })
}

/// The traffic class of an address vector: its own, or that of its service level, 1 to 7, which a
/// RoCE NIC makes the priority of the VLAN tag. A socket sends no such tag, so here it is the class
/// selector of that number (RFC 2474 4.2.2). More than 7 comes from programs that copy
/// `ibv_wc::sl`, which has another meaning.
fn traffic_class_of(attr: &abi::ibv_ah_attr) -> u8 {
    match (attr.grh.traffic_class, attr.sl) {
        (0, level @ 1..=7) => level << CLASS_SELECTOR_SHIFT,
        (class, _) => class,
    }
}

/// The class of a connection for which the program asked nothing.
pub fn class_of_connections(device: &engine::Device) -> u8 {
    static IS_BULK: OnceLock<bool> = OnceLock::new();
    let asked = || std::env::var_os("AIRDMA_BULK").is_some_and(|value| value == "1");
    // A connection that falls back at each loss would starve.
    match *IS_BULK.get_or_init(asked) && device.asks_for_air() {
        true => BULK,
        false => 0,
    }
}

/// Above the three bits of a class selector are none.
const CLASS_SELECTOR_SHIFT: u32 = 5;
/// CS1, which gives way to everything: low-priority data (RFC 4594 4.10), access category AC_BK on
/// Wi-Fi (RFC 8325 4.2.10). The later LE (RFC 8622) is best effort to kernels that do not know it.
const BULK: u8 = 1 << CLASS_SELECTOR_SHIFT;

/// Whether ports have LIDs, for programs that know of nothing else (`AIRDMA_LIDS=1`): the low half
/// of the IPv4 address.
fn has_lids() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os("AIRDMA_LIDS").is_some_and(|value| value == "1"))
}

/// The LID of a device's port, 0 for none.
pub fn lid_of(info: &DeviceInfo) -> u16 {
    match first_v4(info) {
        Some((_, address)) if has_lids() => u32::from(address) as u16,
        Some(_) | None => 0,
    }
}

/// An address vector without GRH that names a LID, where there are any, in the form that RoCE has;
/// others as they are.
pub fn without_lid(attr: &abi::ibv_ah_attr, device: &engine::Device) -> abi::ibv_ah_attr {
    if attr.is_global != 0 || attr.dlid == 0 || !has_lids() {
        return *attr;
    }
    let path = path_to_lid(attr.dlid, &device.current());
    path.map_or(*attr, |path| abi::ibv_ah_attr {
        port_num: attr.port_num,
        ..attr_of(&path)
    })
}

/// The path to the host of a LID: its address begins as ours does.
fn path_to_lid(lid: u16, info: &DeviceInfo) -> Option<Path> {
    let (row, own) = first_v4(info)?;
    let address = Ipv4Addr::from(u32::from(own) & 0xffff_0000 | u32::from(lid));
    Some(Path {
        gid: Gid::from(IpAddr::V4(address)),
        sgid_index: row,
        hop_limit: 1,
        ..Path::default()
    })
}

fn first_v4(info: &DeviceInfo) -> Option<(u8, Ipv4Addr)> {
    let rows = (0..=u8::MAX).zip(&info.gids);
    rows.filter(|(_, row)| !row.is_empty())
        .find_map(|(index, row)| match row.address {
            IpAddr::V4(address) => Some((index, address)),
            IpAddr::V6(_) => None,
        })
}

/// The address vector of a path.
pub fn attr_of(path: &Path) -> abi::ibv_ah_attr {
    // SAFETY: plain integers.
    let mut attr: abi::ibv_ah_attr = unsafe { zeroed() };
    attr.grh = abi::ibv_global_route {
        dgid: abi::ibv_gid { raw: path.gid.0 },
        flow_label: path.flow_label,
        sgid_index: path.sgid_index,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
    };
    attr.is_global = 1;
    attr.port_num = port::PORT;
    attr
}

/// The way back to the sender whose GRH area this is: an IPv6 header, or an IPv4 header in its last
/// 20 bytes (IBTA annex A17.4.5.2).
fn path_back(area: &[u8; 40], info: &DeviceInfo) -> Option<Path> {
    let (source, destination, traffic_class, flow_label) = if area[0] >> 4 == 6 {
        let word = u32::from_be_bytes(array(area, 0));
        (
            Gid(array(area, 8)),
            Gid(array(area, 24)),
            (word >> 20) as u8,
            word & FLOW_LABEL_MASK,
        )
    } else if area[20] == 0x45 {
        let address = |at| Gid::from(IpAddr::V4(Ipv4Addr::from(array::<4>(area, at))));
        (address(32), address(36), area[21], 0)
    } else {
        return None;
    };
    let group = destination.to_ip();
    let row = info.gids.iter().position(|row| {
        // A datagram for a group names no address of ours: any of its family will do.
        let is_of_family = !row.is_empty() && row.address.is_ipv4() == group.is_ipv4();
        row.gid == destination || group.is_multicast() && is_of_family
    })?;
    Some(Path {
        gid: source,
        sgid_index: u8::try_from(row).ok()?,
        traffic_class,
        hop_limit: HOP_LIMIT,
        flow_label,
    })
}

/// `N` bytes of the area; the offsets above are inside.
fn array<const N: usize>(area: &[u8; 40], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&area[at..at + N]);
    out
}

/// 20 bits (RFC 8200).
const FLOW_LABEL_MASK: u32 = 0x000f_ffff;

/// Hop limit of the way back: the one of the way here says nothing about it.
const HOP_LIMIT: u8 = 0xff;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use airdma_engine::{GidEntry, PathMtu};

    fn info(addresses: &[&str]) -> DeviceInfo {
        let row = |text: &&str| {
            let address: IpAddr = text.parse().unwrap();
            GidEntry {
                gid: Gid::from(address),
                address,
            }
        };
        DeviceInfo {
            name: "airdma_veth0".into(),
            interface: "veth0".into(),
            interface_index: 7,
            mtu: 1500,
            mac: [0; 6],
            guid: 0,
            gids: addresses.iter().map(row).collect(),
            path_mtu: PathMtu::M1024,
            up: true,
            speed_mbps: None,
        }
    }

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn an_address_vector_without_grh_is_refused() {
        let mut attr = attr_of(&Path::default());
        assert!(path_of(&attr).is_ok());
        attr.is_global = 0;
        assert_eq!(path_of(&attr), Err(Errno::INVALID));
        attr.is_global = 1;
        attr.port_num = 2;
        assert_eq!(path_of(&attr), Err(Errno::INVALID));
    }

    #[test]
    fn the_host_of_a_lid_is_a_neighbour() {
        let info = info(&["fe80::1", "10.5.7.1"]);
        assert_eq!(lid_of(&info), 0, "only where they are wanted");
        let path = path_to_lid(0x0902, &info).unwrap();
        assert_eq!(path.gid, gid("10.5.9.2"));
        assert_eq!(path.sgid_index, 1);
    }

    #[test]
    fn a_path_survives_the_way_to_c_and_back() {
        let path = Path {
            gid: gid("10.5.0.2"),
            sgid_index: 3,
            traffic_class: 0x68,
            hop_limit: 64,
            flow_label: 0x12345,
        };
        assert_eq!(path_of(&attr_of(&path)), Ok(path));
    }

    #[test]
    fn a_service_level_without_a_class_is_a_class_selector() {
        let mut attr = attr_of(&Path::default());
        let cases = [
            ((0, 0), 0),
            ((0, 1), 0x20),
            ((0, 7), 0xe0),
            ((0x68, 0), 0x68),
            ((0x68, 5), 0x68),
            ((0x02, 5), 0x02),
            ((0, 8), 0),
            ((0, 10), 0),
        ];
        for ((class, level), expected) in cases {
            (attr.grh.traffic_class, attr.sl) = (class, level);
            let carried = path_of(&attr).unwrap().traffic_class;
            assert_eq!(carried, expected, "class {class:#x}, level {level}");
        }
    }

    #[test]
    fn the_way_back_of_an_ipv4_datagram() {
        let mut area = [0; 40];
        area[20] = 0x45;
        area[21] = 0x20;
        area[32..36].copy_from_slice(&[10, 5, 0, 2]);
        area[36..40].copy_from_slice(&[10, 5, 0, 1]);
        let path = path_back(&area, &info(&["10.4.0.1", "10.5.0.1"])).unwrap();
        assert_eq!(path.gid, gid("10.5.0.2"));
        assert_eq!(path.sgid_index, 1);
        assert_eq!(path.traffic_class, 0x20);
        assert_eq!(path_back(&area, &info(&["10.4.0.1"])), None);
    }

    #[test]
    fn the_way_back_of_a_multicast_datagram() {
        let mut area = [0; 40];
        area[20] = 0x45;
        area[32..36].copy_from_slice(&[10, 5, 0, 2]);
        area[36..40].copy_from_slice(&[239, 1, 2, 3]);
        let path = path_back(&area, &info(&["fd00::1", "10.5.0.1"])).unwrap();
        assert_eq!((path.gid, path.sgid_index), (gid("10.5.0.2"), 1));
        assert_eq!(path_back(&area, &info(&["fd00::1"])), None);
    }

    #[test]
    fn the_way_back_of_an_ipv6_datagram() {
        let mut area = [0; 40];
        area[..4].copy_from_slice(&0x6681_2345_u32.to_be_bytes());
        area[8..24].copy_from_slice(&gid("fd00::2").0);
        area[24..40].copy_from_slice(&gid("fd00::1").0);
        let path = path_back(&area, &info(&["10.4.0.1", "fd00::1"])).unwrap();
        assert_eq!(path.gid, gid("fd00::2"));
        assert_eq!(path.sgid_index, 1);
        assert_eq!(path.traffic_class, 0x68);
        assert_eq!(path.flow_label, 0x12345);
    }

    #[test]
    fn an_area_that_holds_no_ip_header_leads_nowhere() {
        assert_eq!(path_back(&[0; 40], &info(&["10.4.0.1"])), None);
    }
}
