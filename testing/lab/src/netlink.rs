//! Interfaces and addresses by rtnetlink: each request waits for the kernel's answer.

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Larger than any answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A socket to the kernel's routing tables, of the namespace of the thread that made it.
pub struct Route {
    socket: Socket,
    sequence: u32,
}

impl Route {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> io::Result<Route> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Route {
            socket,
            sequence: 0,
        })
    }

    /// Adds a veth pair whose ends have the same name and MTU: one here, the other in the namespace
    /// of `peer`.
    pub fn add_veth(&mut self, name: &str, mtu: u32, peer: RawFd) -> io::Result<()> {
        let mut far = LinkMessage::default();
        far.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::NetNsFd(peer),
        ];
        let mut near = LinkMessage::default();
        near.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
            ]),
        ];
        self.acknowledged(
            RouteNetlinkMessage::NewLink(near),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Removes an interface; of a veth pair, both ends.
    pub fn remove(&mut self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.acknowledged(RouteNetlinkMessage::DelLink(link), 0)
    }

    /// Brings an interface up.
    pub fn set_up(&mut self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.acknowledged(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Makes the interface refuse segmented (GSO) packets longer than one segment: each packet
    /// crosses it alone.
    pub fn forbid_segmented(&mut self, index: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = vec![LinkAttribute::GsoMaxSegs(1)];
        self.acknowledged(RouteNetlinkMessage::NewLink(link), 0)
    }

    /// Adds an address to an interface. IPv6 addresses are usable at once, without duplicate
    /// address detection.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = prefix;
        message.header.family = if address.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        message.attributes = vec![
            AddressAttribute::Address(address),
            AddressAttribute::Local(address),
        ];
        if address.is_ipv6() {
            let flags = AddressAttribute::Flags(AddressFlags::Nodad);
            message.attributes.push(flags);
        }
        self.acknowledged(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Whether packets can cross: both the interface and its peer are up.
    pub fn is_up(&mut self, index: u32) -> io::Result<bool> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        let answer = self.ask(RouteNetlinkMessage::GetLink(link), 0)?;
        let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) = answer else {
            return Err(io::Error::other("no interface in the answer"));
        };
        let up = |attribute: &LinkAttribute| *attribute == LinkAttribute::OperState(State::Up);
        Ok(link.attributes.iter().any(up))
    }

    fn acknowledged(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.ask(message, flags | NLM_F_ACK).map(drop)
    }

    /// Sends one request and returns the kernel's answer, or its error.
    fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<NetlinkPayload<RouteNetlinkMessage>> {
        self.sequence += 1;
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answer = Vec::with_capacity(ANSWER_BYTES_MAX);
        self.socket.recv(&mut answer, 0)?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
            .map_err(|error| io::Error::other(error.to_string()))?;
        if let NetlinkPayload::Error(error) = &answer.payload
            && error.code.is_some()
        {
            return Err(error.to_io());
        }
        Ok(answer.payload)
    }
}
