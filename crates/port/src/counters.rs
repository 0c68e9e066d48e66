//! Counters of a port.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the port was made. All wrap-free in practice: 64 bits.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct PortCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl PortCounters {
            /// Every counter with its name, in the order of the fields.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Every counter, in that order.
            #[inline]
            pub fn values(&self) -> [u64; size_of::<PortCounters>() / size_of::<u64>()] {
                [$(self.$name,)*]
            }
        }
    };
}

counters! {
    /// Packets delivered: ICRC correct.
    rx_packets,
    /// Their UDP payload bytes, ICRC included.
    rx_bytes,
    /// Calls to the kernel that returned at least one buffer.
    rx_batches,
    /// Buffers the kernel returned: one datagram, or several coalesced into one (UDP_GRO).
    /// `rx_packets / rx_buffers` says how well coalescing works.
    rx_buffers,
    /// Packets dropped because their ICRC is wrong: damaged on the way, or not RoCEv2 at all.
    rx_bad_icrc,
    /// IPv4 packets whose ICRC is right for an IP identification other than the predicted one (see
    /// [`crate::udp`]): nearly all those of a kernel or hardware peer; those of an airdma peer only
    /// if its segmented sends are cut on the way and not coalesced again.
    rx_id_recovered,
    /// Those of `rx_packets` that came by way of another process that shares the address.
    rx_forwarded,
    /// Those of `rx_packets` that came through memory from a process of this host
    /// ([`crate::local`]).
    rx_local,
    /// Probes of the same host ([`airdma_wire::local_probe`]) that no process of this host asked
    /// for: forged, or late.
    rx_unasked_probes,
    /// Datagrams dropped because they are shorter than a BTH and an ICRC.
    rx_short,
    /// Datagrams dropped because they did not fit the receive buffer.
    rx_truncated,
    /// Bundles ([`airdma_wire::bundle`]) dropped because their lengths do not fit each other.
    rx_bad_bundle,
    /// Datagrams the kernel dropped at the socket: the receive buffer was full, or the UDP checksum
    /// was wrong.
    rx_overflow,
    /// Frames dropped by [`crate::packet`] whose headers are wrong: truncated, a wrong checksum, IP
    /// options, lengths that do not fit each other.
    rx_bad_frames,
    /// First fragments of datagrams that [`crate::packet`] does not put together.
    rx_fragments,
    /// Frames dropped by [`crate::packet`] that are for another link or address: a VLAN's, another
    /// host's.
    rx_stray_frames,
    /// Receive calls that failed.
    rx_errors,
    /// Packets handed to the kernel.
    tx_packets,
    /// Their UDP payload bytes, ICRC included.
    tx_bytes,
    /// Those of `tx_packets` that went through memory to a process of this host ([`crate::local`]).
    tx_local,
    /// Packets dropped because the memory that a process of this host shares was full.
    tx_local_full,
    /// Sends the kernel took: one packet, or several as one segmented send. `tx_packets / tx_sends`
    /// says how well segmentation works.
    tx_sends,
    /// Those of `tx_sends` that carried several packets (UDP_SEGMENT).
    tx_segmented_sends,
    /// Those of `tx_packets` that were too big for the interface and left as IP fragments.
    tx_fragmented,
    /// Those of `tx_sends` that were bundles ([`airdma_wire::bundle`]).
    tx_bundles,
    /// Times the kernel could take no more, and packets stayed in their batch.
    tx_again,
    /// Packets dropped because the kernel refused them, whatever the reason.
    tx_errors,
    /// Those of `tx_errors` that are bigger than an IP packet can be, even in fragments (EMSGSIZE).
    tx_too_big,
    /// Those of `tx_errors` that a packet filter or security module refused (EPERM, EACCES).
    tx_filtered,
    /// Those of `tx_errors` without a route, or whose host or interface is down (ENETUNREACH,
    /// EHOSTUNREACH, ENETDOWN).
    tx_unreachable,
    /// Times a bundle was refused; from that address none leave from then on.
    tx_bundles_refused,
    /// Times a segmented send was refused although a plain one worked; segmentation is off from
    /// then on.
    tx_segmentation_refused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_name() {
        let counters = PortCounters {
            rx_packets: 3,
            tx_segmentation_refused: 7,
            ..PortCounters::default()
        };
        let named: Vec<_> = counters.named().collect();
        assert_eq!(named.first(), Some(&("rx_packets", 3)));
        assert_eq!(named.last(), Some(&("tx_segmentation_refused", 7)));
        assert_eq!(named.len() * 8, size_of::<PortCounters>());
    }
}
