//! Two hosts that share a secret, a path that loses packets, and a third host on that path: it has
//! every packet, and sends what it likes of it, changed, again or made up, in the name of anyone.

use airdma_engine::{AttrMask, QpAttributes};
use airdma_port::sim::Frame;
use airdma_wire::air::{self, Hello, KeyOffer, Message, Report, ReportWriter, hello};
use airdma_wire::mad::MAD_LEN;
use airdma_wire::sealed::{SEALED_OPCODE, SEALED_OVERHEAD};
use airdma_wire::{Bth, ICRC_LEN, Packet, Psn, Qpn};

use crate::input::Input;
use crate::off_path::{LossyPath, frame, management};

const SECRET: &[u8] = b"what no host on the path has";
/// Bytes of a datagram to queue pair 1 behind the message.
const TAG_LEN: usize = 16;
/// Offset of the byte of the BTH that routers may change.
const CONGESTION_AT: usize = 4;
/// Times that the queue pairs are connected anew.
const RECONNECTS_MAX: usize = 3;
/// Rounds in which a host has sent what it has to send, in one moment.
const ROUNDS_MAX: usize = 1_000;

/// Both ends do their work, whatever the host between them sends, and answer none of it.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut path = LossyPath::new(Some(SECRET));
    let mut reconnects = 0;
    while !input.is_empty() {
        let victim = input.below(2);
        match input.below(10) {
            0 | 1 => path.post(victim, &mut input),
            2 => path.lost_bits = input.u32() & input.u32(),
            3 | 4 => replay(&mut path, victim, &mut input),
            5 | 6 => alter(&mut path, victim, &mut input),
            7 => invent(&mut path, victim, &mut input),
            8 if reconnects < RECONNECTS_MAX && input.one_in(4) => {
                reconnects += 1;
                reconnect(&mut path);
            }
            _ => path.pass(1 + input.below(20)),
        }
    }
    path.finish();
    for host in &path.hosts {
        let counters = host.device.device().counters();
        let agreed = counters.iter().find(|(name, _)| *name == "seals_agreed");
        let agreed = agreed.map(|(_, count)| *count);
        assert_eq!(agreed, Some(1 + reconnects as u64), "keys of a connection");
        assert!(host.qp.sealed_binding().is_some(), "it has keys");
    }
    let bindings = path.hosts.each_ref().map(|host| host.qp.sealed_binding());
    assert_eq!(bindings[0], bindings[1], "a host is in the middle");
}

/// Completes posted requests, and connects the same queue pairs again.
fn reconnect(path: &mut LossyPath) {
    path.finish();
    for host in &path.hosts {
        let reset = QpAttributes::default();
        let moved = host.qp.modify(&reset, AttrMask::STATE);
        moved.expect("a legal move");
    }
    path.connect();
    path.pass(500);
}

/// One of the packets that passed: the last ones, or any.
fn pick(path: &LossyPath, input: &mut Input<'_>) -> Option<usize> {
    let count = path.seen.as_ref().map_or(0, Vec::len);
    let back = match input.byte() {
        back @ 0..128 => usize::from(back),
        high => usize::from(high) << 8 | usize::from(input.byte()),
    };
    (count > 0).then(|| count - 1 - back % count)
}

/// A packet comes again, or for the first time.
fn replay(path: &mut LossyPath, victim: usize, input: &mut Input<'_>) {
    let Some(which) = pick(path, input) else {
        return;
    };
    let Some(seen) = path.seen.as_mut().and_then(|seen| seen.get_mut(which)) else {
        return;
    };
    let (to, again) = (seen.to, seen.frame.clone());
    let is_late = !std::mem::replace(&mut seen.arrived, true);
    if is_late {
        path.hosts[to].carrier.give(again);
        return;
    }
    if input.one_in(4) {
        // To its sender, as if its receiver had sent it.
        let end = again.bytes.len() - ICRC_LEN;
        let bytes = again.bytes[..end].to_vec();
        return give(path, victim, frame(1 - victim, victim, bytes), 1);
    }
    // An offer of a key has an answer.
    give(path, to, again, 1);
}

/// A packet that passed, and was changed.
fn alter(path: &mut LossyPath, victim: usize, input: &mut Input<'_>) {
    let Some(which) = pick(path, input) else {
        return;
    };
    let Some(seen) = path.seen.as_ref().and_then(|seen| seen.get(which)) else {
        return;
    };
    let end = seen.frame.bytes.len() - ICRC_LEN;
    let before = &seen.frame.bytes[..end];
    let mut bytes = before.to_vec();
    let to = if input.one_in(8) { victim } else { seen.to };
    let how = input.byte();
    if how & 1 != 0
        && let Some(altered) = alter_offer(&bytes, input)
    {
        bytes = altered;
    }
    for _ in 0..how >> 1 & 3 {
        let at = usize::from(input.u16()) % bytes.len();
        if at != CONGESTION_AT {
            bytes[at] ^= input.byte();
        }
    }
    match how >> 3 & 7 {
        0 => bytes.truncate(usize::from(input.u16()) % bytes.len()),
        1 => bytes.extend_from_slice(input.take(4 * usize::from(how >> 6))),
        2 if bytes.len() > SEALED_OVERHEAD => {
            let at = bytes.len() - 24;
            bytes[at..at + 8].copy_from_slice(&input.u64().to_be_bytes());
        }
        3 => bytes[5..8].copy_from_slice(&path.hosts[to].qp.number().get().to_be_bytes()[1..]),
        _ => {}
    }
    if bytes == before && to == seen.to {
        return;
    }
    let from = if how >> 6 == 3 { 2 } else { 1 - to };
    give(path, to, frame(from, to, bytes), 0);
}

/// Another key, or other claims, under what authenticated an offer.
fn alter_offer(bytes: &[u8], input: &mut Input<'_>) -> Option<Vec<u8>> {
    let packet = Packet::parse(bytes).ok()?;
    let (mad, tag) = packet.payload.split_at_checked(MAD_LEN)?;
    let Ok(Message::Key(offer)) = air::parse(mad) else {
        return None;
    };
    let flags = input.byte();
    let altered = KeyOffer {
        asks: flags & 1 != 0,
        has_keys: flags & 2 != 0,
        public_key: if flags & 4 != 0 {
            input.bytes()
        } else {
            offer.public_key
        },
        seen: if flags & 8 != 0 {
            Some(input.bytes())
        } else {
            offer.seen
        },
        ..offer
    };
    (altered != offer).then(|| management(&[&air::key(&altered)[..], tag].concat()))
}

/// A packet that is made up, with all that can be known.
fn invent(path: &mut LossyPath, victim: usize, input: &mut Input<'_>) {
    let [ours, theirs] = [1 - victim, victim].map(|host| path.hosts[host].qp.number());
    let id = |number: Qpn| (number.get() >> 12 & 0xff) << 24;
    let bytes = match input.below(5) {
        0 => {
            let psn = Psn::new(input.u32());
            let mut bytes = vec![0; Bth::LEN];
            bytes[0] = SEALED_OPCODE;
            bytes[1..].copy_from_slice(
                &Bth::new(airdma_wire::Opcode::RcSendOnly, theirs, psn).to_bytes()[1..],
            );
            let length = SEALED_OVERHEAD + 4 * input.below(64);
            bytes.extend_from_slice(input.take(length));
            bytes.resize(Bth::LEN + length, 0x5a);
            bytes
        }
        1 => match path.plain_packet(victim, input) {
            Some(bytes) => bytes,
            None => return,
        },
        2 => {
            let offer = KeyOffer {
                asks: input.one_in(2),
                has_keys: input.one_in(2),
                sender: ours,
                receiver: theirs,
                public_key: input.bytes(),
                seen: input.one_in(2).then(|| input.bytes()),
            };
            signed(&air::key(&offer), input)
        }
        3 => {
            let forged = Hello {
                asks: input.one_in(2),
                long_payload: input.u16(),
                features: u64::from(input.byte()),
                sender: id(ours),
                instance: input.u64(),
                answers: input.one_in(2).then(|| input.u64()),
                nonce: input.u64(),
                echo: input.u64(),
                number: input.u32(),
            };
            signed(&hello(&forged, id(theirs)), input)
        }
        _ => {
            let writer = ReportWriter::new(&Report {
                instance: input.u64(),
                from: input.u64(),
                sender: id(ours),
                number: input.u32(),
                ..Report::default()
            });
            signed(&writer.finish(id(theirs)), input)
        }
    };
    give(path, victim, frame(1 - victim, victim, bytes), 0);
}

/// A datagram to queue pair 1, with what might authenticate it.
fn signed(mad: &[u8; MAD_LEN], input: &mut Input<'_>) -> Vec<u8> {
    let tag: [u8; TAG_LEN] = input.bytes();
    let length = if input.one_in(3) { 0 } else { TAG_LEN };
    management(&[&mad[..], &tag[..length]].concat())
}

/// Gives a packet to a host that has sent everything; it may then send at most `answers_max`
/// packets.
fn give(path: &mut LossyPath, victim: usize, forged: Frame, answers_max: usize) {
    let now = path.now();
    let say = |path: &LossyPath| {
        let host = &path.hosts[victim];
        let mut said = Vec::new();
        for _ in 0..ROUNDS_MAX {
            host.device.run(now);
            let before = said.len();
            said.extend(std::iter::from_fn(|| host.carrier.take()));
            if said.len() == before {
                return said;
            }
        }
        panic!("a host says something without end at {now:?}");
    };
    let waiting = say(path);
    path.hosts[victim].carrier.give(forged);
    let answers = say(path);
    assert!(
        answers.len() <= answers_max,
        "{} packets on a forged one",
        answers.len()
    );
    for frame in waiting.into_iter().chain(answers) {
        path.carry(victim, frame);
    }
    path.complete();
}
