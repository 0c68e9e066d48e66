//! Priority-based flow control (IEEE 802.1Qbb, now in IEEE 802.1Q; the frame is that of IEEE 802.3
//! annex 31D): asks the link partner to pause some priorities for a while.
//!
//! ```text
//!  +----------------------------------+-------------------------------+
//!  |  01-80-C2-00-00-01: the cable's  |  source address               |  6 + 6
//!  +----------------+-----------------+-------------------------------+
//!  | 0x8808         |  opcode 0x0101  |  class enable: bit n for      |  2 + 2 + 2
//!  |                |                 |  priority n, the upper byte 0 |
//!  +----------------+-----------------+-------------------------------+
//!  |  time of priorities 0 to 7, in quanta; 0: go on                  |  8 x 2
//!  +------------------------------------------------------------------+
//!  |  zeros, to the shortest frame                                    |  26
//!  +------------------------------------------------------------------+
//! ```
//!
//! No bridge forwards such a frame. The check sequence behind it is the NIC's.

use crate::field;

/// Length of the frame in bytes, without check sequence.
pub const PFC_LEN: usize = 60;

/// Destination address of PAUSE and PFC frames, which bridges do not forward.
pub const MAC_CONTROL_ADDRESS: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];

const MAC_CONTROL: u16 = 0x8808;
const OPCODE: u16 = 0x0101;
/// Length of a quantum, in bit times of the cable.
const QUANTUM_BITS: u64 = 512;
const TIMES_AT: usize = 18;
const PRIORITIES: usize = 8;

/// A PFC frame: pause times that an interface asks of its link partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pfc {
    /// Address of the interface that sends it.
    pub source: [u8; 6],
    /// For each priority, the time to pause from now on, in quanta; 0 resumes, `None` leaves it as
    /// it is.
    pub quanta: [Option<u16>; PRIORITIES],
}

impl Pfc {
    /// A frame about one priority, 0 to 7; a higher one is ignored.
    pub fn of(source: [u8; 6], priority: u8, quanta: u16) -> Pfc {
        let of = |index| (index == usize::from(priority)).then_some(quanta);
        Pfc {
            source,
            quanta: std::array::from_fn(of),
        }
    }

    /// The frame.
    pub fn emit(&self) -> [u8; PFC_LEN] {
        let mut frame = [0; PFC_LEN];
        field::set::<0, 6, _>(&mut frame, MAC_CONTROL_ADDRESS);
        field::set::<6, 6, _>(&mut frame, self.source);
        field::set::<12, 2, _>(&mut frame, MAC_CONTROL.to_be_bytes());
        field::set::<14, 2, _>(&mut frame, OPCODE.to_be_bytes());
        let bits = (0..PRIORITIES).filter(|index| self.quanta[*index].is_some());
        let enabled: u16 = bits.map(|index| 1 << index).sum();
        field::set::<16, 2, _>(&mut frame, enabled.to_be_bytes());
        let times = self.quanta.map(|quanta| quanta.unwrap_or(0).to_be_bytes());
        for (to, time) in frame[TIMES_AT..].chunks_exact_mut(2).zip(times) {
            to.copy_from_slice(&time);
        }
        frame
    }

    /// The request in a frame; `None` if the frame is another kind, or cut off.
    ///
    /// Padding may be missing: some interfaces strip it.
    pub fn parse(frame: &[u8]) -> Option<Pfc> {
        let header: &[u8; TIMES_AT] = frame.first_chunk()?;
        let word = |bytes: [u8; 2]| u16::from_be_bytes(bytes);
        let kind = [
            word(field::get::<12, 2, _>(header)),
            word(field::get::<14, 2, _>(header)),
        ];
        if field::get::<0, 6, _>(header) != MAC_CONTROL_ADDRESS || kind != [MAC_CONTROL, OPCODE] {
            return None;
        }
        let times: &[u8; 2 * PRIORITIES] = frame[TIMES_AT..].first_chunk()?;
        let enabled = word(field::get::<16, 2, _>(header));
        let of = |index: usize| {
            let time = word([times[2 * index], times[2 * index + 1]]);
            (enabled & 1 << index != 0).then_some(time)
        };
        Some(Pfc {
            source: field::get::<6, 6, _>(header),
            quanta: std::array::from_fn(of),
        })
    }
}

/// Length of `quanta` in nanoseconds, on a cable of this speed.
pub fn quanta_ns(quanta: u16, mbit_per_s: u32) -> u64 {
    u64::from(quanta) * QUANTUM_BITS * 1000 / u64::from(mbit_per_s.max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x2a];

    #[test]
    fn a_frame_is_laid_out_as_the_standard_draws_it() {
        // IEEE 802.3 figure 31D-1: pauses priority 3 for 0xffff quanta, resumes priority 5, leaves
        // the others.
        let mut golden = vec![0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];
        golden.extend([0x02, 0x00, 0x00, 0x00, 0x00, 0x2a]);
        golden.extend([0x88, 0x08, 0x01, 0x01, 0x00, 0b0010_1000]);
        golden.extend([0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([0; 26]);
        let mut asked = Pfc::of(SOURCE, 3, 0xffff);
        asked.quanta[5] = Some(0);
        assert_eq!(asked.emit()[..], golden);
        assert_eq!(Pfc::parse(&golden), Some(asked));
        assert_eq!(Pfc::parse(&golden[..34]), Some(asked));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for priority in 0..8 {
            for quanta in [0, 1, 0x1234, u16::MAX] {
                let asked = Pfc::of(SOURCE, priority, quanta);
                assert_eq!(asked.quanta[usize::from(priority)], Some(quanta));
                assert_eq!(Pfc::parse(&asked.emit()), Some(asked));
            }
        }
    }

    #[test]
    fn another_frame_asks_for_nothing() {
        let frame = Pfc::of(SOURCE, 3, 7).emit();
        for (at, other) in [(5, 0x0e), (13, 0x09), (14, 0x00)] {
            let mut changed = frame;
            changed[at] = other;
            assert_eq!(Pfc::parse(&changed), None, "byte {at}");
        }
        for len in 0..34 {
            assert_eq!(Pfc::parse(&frame[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn a_quantum_is_512_bits_of_the_cable() {
        assert_eq!(quanta_ns(1, 10_000), 51);
        assert_eq!(quanta_ns(u16::MAX, 10_000), 3_355_392);
        assert_eq!(quanta_ns(u16::MAX, 1_000), 33_553_920);
        assert_eq!(quanta_ns(1, 0), 512_000);
    }
}
