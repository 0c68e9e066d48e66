//! Steps of both ends once selective repeat is agreed.

use std::time::Duration;

use airdma_transport::{Acknowledgement, PsnRange, ReorderMemory, Tags};
use airdma_wire::Psn;

use super::{AHEAD_MAX, LATE_MAX, REORDER_BYTES, SENT_MAX, Siege};
use crate::input::Input;
use crate::values::near;

impl Siege {
    /// Both ends agree to repeat selectively; the peer is told by reports, or by ACKs.
    pub fn agree(&mut self, input: &mut Input<'_>) {
        let memory = ReorderMemory::new(REORDER_BYTES);
        self.queue_pair.set_selective(Some(&memory));
        self.queue_pair.tell_by_acks(input.one_in(3));
        self.reorder = Some(memory);
        if input.one_in(2) {
            let tags = Tags {
                sent: 0x1234,
                taken: 0x0777,
            };
            self.queue_pair.set_tags(tags);
            self.tags = Some(tags);
        }
    }

    /// Both ends agree on long packets, and whether those of a message have one length; packets of
    /// the attacker's are padded, in any way wrong.
    pub fn agree_on_lengths(&mut self, input: &mut Input<'_>) {
        let mtu = self.mtu();
        let payload = input.pick(&[0, mtu + 20, mtu + 400, 4096]).min(4096);
        self.queue_pair.set_equal_lengths(input.one_in(2));
        self.queue_pair
            .set_long_payloads(payload, payload, input.one_in(2));
        self.long = self.long.max(payload);
        self.padding = input.pick(&[0, 8, 8, 8, 4, 1, 12, 9, 1000, u16::MAX]);
    }

    /// Some of the next packets of the attacker's are late.
    pub fn delay(&mut self, input: &mut Input<'_>) {
        self.late_bits = input.u32() & input.u32();
    }

    /// One that was late comes.
    pub fn bring(&mut self, input: &mut Input<'_>) {
        let index = input.below(LATE_MAX) % self.late.len().max(1);
        if let Some(bytes) = self.late.remove(index) {
            self.deliver_bytes(&bytes);
        }
    }

    /// The peer says of our packets what it has: mostly of one that was sent, in any way wrong.
    pub fn report(&mut self, input: &mut Input<'_>) {
        let about = input.below(SENT_MAX) % self.sent.len().max(1);
        let sent = self
            .sent
            .get(about)
            .map_or(Psn::new(0), |sent| sent.bth.psn);
        self.sent.drain(..about.min(self.sent.len()));
        let expected = near(sent, input);
        let ranges = input.below(4);
        let mut first = expected;
        let missing: Vec<PsnRange> = (0..ranges)
            .map(|_| {
                let packets = match input.below(4) {
                    0 | 1 => 1 + u32::from(input.byte() & 7),
                    2 => input.pick(&[0, 8191, 8192, 0x80_0000, u32::MAX]),
                    _ => input.u32(),
                };
                let range = PsnRange { first, packets };
                first = near(first.add(packets).add(u32::from(input.byte() & 3)), input);
                range
            })
            .collect();
        let told = Acknowledgement {
            expected,
            missing: &missing,
            rtt: Duration::from_nanos(1 << input.below(34)),
            told_within: Duration::from_nanos(1 << input.below(34)),
        };
        self.queue_pair
            .handle_acknowledgement(self.now, &told, &mut self.host);
    }

    /// The peer is told how far we are: something that can be so.
    pub fn tell(&mut self) {
        let owed = self.queue_pair.owes_acknowledgement();
        let mut missing = [PsnRange {
            first: Psn::new(0),
            packets: 0,
        }; 8];
        let Some((expected, count)) = self.queue_pair.take_report(&mut missing) else {
            assert_eq!(owed, None, "owes what it cannot say");
            return;
        };
        let mut end = expected;
        for range in &missing[..count] {
            assert!(range.packets > 0, "nothing is missing");
            assert!(range.first.distance_from(end) >= 0, "not in order");
            end = range.first.add(range.packets);
        }
        assert!(end.distance_from(expected) <= AHEAD_MAX, "from nowhere");
        assert_eq!(self.queue_pair.owes_acknowledgement(), None, "just told");
    }
}
