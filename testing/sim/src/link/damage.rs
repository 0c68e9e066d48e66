//! Bits that flip, and packets that are cut off.

use crate::ip;
use crate::random::Random;

/// Bits that one damage flips at most. CRC-32 finds every damage of up to three bits at our
/// lengths.
const FLIPS_MAX: u64 = 3;

/// Offset in the BTH of the byte that the ICRC does not cover (FECN, BECN and reserved bits).
const CONGESTION_AT: usize = 4;

/// Damages what the ICRC covers behind the UDP header, or the ICRC itself. The headers in front
/// stay right, also when the end is cut off.
pub(crate) fn damage_transport(packet: &mut Vec<u8>, random: &mut Random) {
    let at = ip::transport_at(packet);
    let len = packet.len().saturating_sub(at);
    if len == 0 {
        return;
    }
    if random.chance(0.125) {
        packet.truncate(at + random.index(len));
        ip::set_lengths(packet);
        return;
    }
    let mut flipped = Vec::new();
    for _ in 0..random.between(1, FLIPS_MAX) {
        let bit = random.index(len * 8);
        if bit / 8 == CONGESTION_AT || flipped.contains(&bit) {
            continue;
        }
        flipped.push(bit);
        packet[at + bit / 8] ^= 1 << (bit % 8);
    }
    if flipped.is_empty() {
        packet[at] ^= 1;
    }
}

/// Flips one to three different bits anywhere from the IP header to the ICRC.
pub(crate) fn damage_anything(packet: &mut [u8], random: &mut Random) {
    let bits = packet.len() * 8;
    if bits == 0 {
        return;
    }
    let mut flipped = Vec::new();
    for _ in 0..random.between(1, FLIPS_MAX) {
        let bit = random.index(bits);
        if !flipped.contains(&bit) {
            flipped.push(bit);
            packet[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Cuts off the end, anywhere, and changes no length in the headers.
pub(crate) fn cut_off(packet: &mut Vec<u8>, random: &mut Random) {
    packet.truncate(random.index(packet.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_always_changes_something_that_the_icrc_covers() {
        let mut random = Random::new(5);
        let at = 28;
        for _ in 0..1_000 {
            let mut before = random.bytes(at + 20);
            before[0] = 0x45;
            let mut after = before.clone();
            damage_transport(&mut after, &mut random);
            if after.len() == before.len() {
                after[at + CONGESTION_AT] = before[at + CONGESTION_AT];
                let differs = before.iter().zip(&after).map(|(a, b)| (a ^ b).count_ones());
                assert!((1..=3).contains(&differs.sum::<u32>()));
            }
        }
    }
}
