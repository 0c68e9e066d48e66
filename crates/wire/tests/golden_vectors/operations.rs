//! Checks that the packets of a capture are those of the recorded operations, field by field.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use airdma_captures as captures;
use airdma_wire::{AtomicEth, Opcode, Packet, Psn, Qkey, Qpn, Reth, Rkey};
use serde_json::Value;

/// Captures without loss or refusal: each operation appears once, in order.
const CLEAN: [&str; 16] = [
    "rc_send",
    "rc_send_imm",
    "rc_write",
    "rc_write_imm",
    "rc_read",
    "rc_atomic",
    "rc_pipeline",
    "rc_bidir",
    "rc_dscp",
    "rc_ecn",
    "rc_ipv6",
    "rc_mtu256",
    "rc_mtu4096",
    "uc",
    "ud",
    "ud_ipv6",
];

/// The relevant fields of a request, or of a response that carries data.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    name: String,
    reth: Option<Reth>,
    atomic_eth: Option<AtomicEth>,
    imm: Option<u32>,
    payload: Payload,
}

/// Bytes that print as their length and their beginning.
#[derive(PartialEq, Eq)]
struct Payload(Vec<u8>);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes {:02x?}..",
            self.0.len(),
            &self.0[..self.0.len().min(8)]
        )
    }
}

impl Piece {
    fn new(name: String, payload: Vec<u8>) -> Self {
        Self {
            name,
            reth: None,
            atomic_eth: None,
            imm: None,
            payload: Payload(payload),
        }
    }

    fn captured(packet: &Packet<'_>) -> Self {
        Self {
            name: packet.opcode().name().to_owned(),
            reth: packet.headers.reth,
            atomic_eth: packet.headers.atomic_eth,
            imm: packet.headers.imm.map(u32::from_be_bytes),
            payload: Payload(packet.payload.to_vec()),
        }
    }
}

fn record(name: &str) -> Value {
    captures::record(&format!("rxe-6.1/{name}"))
}

/// A number, or a string of hexadecimal digits behind 0x.
fn number(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap(),
        None => value.as_u64().unwrap(),
    }
}

/// The message of an operation: byte i is 7 * i + seed.
fn message(operation: &Value) -> Vec<u8> {
    let seed = number(&operation["seed"]);
    (0..number(&operation["len"]))
        .map(|i| (7 * i + seed) as u8)
        .collect()
}

fn reth(operation: &Value) -> Reth {
    Reth {
        va: number(&operation["raddr"]),
        rkey: Rkey(number(&operation["rkey"]) as u32),
        length: number(&operation["len"]) as u32,
    }
}

/// Cuts a message into packets: ONLY, or FIRST, MIDDLE ..., LAST.
fn segments(kind: &str, message: &[u8], path_mtu: usize) -> Vec<Piece> {
    let count = message.len().div_ceil(path_mtu).max(1);
    let place = |i: usize| match (i == 0, i + 1 == count) {
        (true, true) => "ONLY",
        (true, false) => "FIRST",
        (false, false) => "MIDDLE",
        (false, true) => "LAST",
    };
    (0..count)
        .map(|i| {
            let end = message.len().min((i + 1) * path_mtu);
            Piece::new(
                format!("{kind}_{}", place(i)),
                message[i * path_mtu..end].to_vec(),
            )
        })
        .collect()
}

/// The memory of `b`, as filled by the operations so far.
#[derive(Default)]
struct Memory(BTreeMap<u64, u8>);

impl Memory {
    fn write(&mut self, va: u64, bytes: &[u8]) {
        self.0.extend((va..).zip(bytes.iter().copied()));
    }

    /// What a READ returns. Memory that no operation filled has the pattern of the READ's own seed.
    fn read(&self, operation: &Value) -> Vec<u8> {
        let bytes = (number(&operation["raddr"])..).zip(message(operation));
        bytes
            .map(|(va, pattern)| self.0.get(&va).copied().unwrap_or(pattern))
            .collect()
    }
}

/// In `rc_pipeline` the READs read the buffers that the sends filled, 512 bytes each.
fn received_before_the_reads(operations: &[&Value]) -> Memory {
    let is = |operation: &&&Value, kind: &str| operation["op"] == kind;
    let read = operations.iter().find(|o| is(o, "READ")).unwrap();
    let mut va = number(&read["raddr"]);
    let mut memory = Memory::default();
    for send in operations.iter().filter(|o| is(o, "SEND")) {
        memory.write(va, &[0; 512]);
        memory.write(va, &message(send));
        va += 512;
    }
    memory
}

/// The requests of an operation, and the responses with data.
fn expected(
    operation: &Value,
    transport: &str,
    path_mtu: usize,
    memory: &mut Memory,
) -> (Vec<Piece>, Vec<Piece>) {
    let kind = operation["op"].as_str().unwrap();
    let (verb, with_imm) = match kind.strip_suffix("_IMM") {
        Some(verb) => (verb, true),
        None => (kind, false),
    };
    match verb {
        "SEND" | "WRITE" => {
            let mut requests = segments(
                &format!("{transport}_{verb}"),
                &message(operation),
                path_mtu,
            );
            if verb == "WRITE" {
                requests[0].reth = Some(reth(operation));
                memory.write(number(&operation["raddr"]), &message(operation));
            }
            if with_imm {
                let last = requests.last_mut().unwrap();
                last.name.push_str("_IMM");
                last.imm = Some(number(&operation["imm"]) as u32);
            }
            (requests, vec![])
        }
        "READ" => {
            let mut request = Piece::new("RC_READ_REQUEST".to_owned(), vec![]);
            request.reth = Some(reth(operation));
            (
                vec![request],
                segments("RC_READ_RESPONSE", &memory.read(operation), path_mtu),
            )
        }
        "FETCH_ADD" | "CMP_SWAP" => {
            let swaps = verb == "CMP_SWAP";
            let name = if swaps {
                "RC_COMPARE_SWAP"
            } else {
                "RC_FETCH_ADD"
            };
            let mut request = Piece::new(name.to_owned(), vec![]);
            let compare_add = number(&operation["compare_add"]);
            let Reth {
                va,
                rkey,
                length: _,
            } = reth(operation);
            let (swap_add, compare) = if swaps {
                (number(&operation["swap"]), compare_add)
            } else {
                (compare_add, 0)
            };
            request.atomic_eth = Some(AtomicEth {
                va,
                rkey,
                swap_add,
                compare,
            });
            (vec![request], vec![])
        }
        other => panic!("operation {other}"),
    }
}

#[test]
fn the_packets_are_those_that_the_operations_call_for() {
    for name in CLEAN {
        let record = record(name);
        let transport = record["transport"].as_str().unwrap();
        let path_mtu = number(&record["path_mtu"]) as usize;
        let all = record["ops"].as_array().unwrap().iter();
        let operations: Vec<_> = all.filter(|o| o["op"].is_string()).collect();
        let mut memory = match name {
            "rc_pipeline" => received_before_the_reads(&operations),
            _ => Memory::default(),
        };
        let expected = operations
            .iter()
            .map(|operation| expected(operation, transport, path_mtu, &mut memory));
        let (requests, answers): (Vec<_>, Vec<_>) = expected.unzip();

        let captured = captures::packets(&format!("rxe-6.1/{name}"));
        let packets = captured
            .iter()
            .map(|c| Packet::parse(c.transport()).unwrap());
        let pieces = |which: fn(Opcode) -> bool| -> Vec<_> {
            let chosen = packets.clone().filter(|packet| which(packet.opcode()));
            chosen.map(|packet| Piece::captured(&packet)).collect()
        };
        let flat = |pieces: Vec<Vec<Piece>>| pieces.into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(pieces(Opcode::is_request), flat(requests), "{name}");
        assert_eq!(pieces(Opcode::is_read_response), flat(answers), "{name}");
    }
}

#[test]
fn packets_are_numbered_and_addressed_as_recorded() {
    for name in CLEAN {
        let record = record(name);
        let path_mtu = number(&record["path_mtu"]) as u32;
        // Per sender: the next sequence number, and the queue pair at the other end.
        let side = |own: &Value, peer: &Value| {
            let gid = own["gid"]
                .as_str()
                .unwrap()
                .parse::<std::net::Ipv6Addr>()
                .unwrap();
            let psn = Psn::new(number(&own["sq_psn"]) as u32);
            (
                IpAddr::V6(gid).to_canonical(),
                (psn, Qpn::new(number(&peer["qpn"]) as u32)),
            )
        };
        let (a, b) = (&record["a"], &record["b"]);
        let mut sides = BTreeMap::from([side(a, b), side(b, a)]);

        for captured in captures::packets(&format!("rxe-6.1/{name}")) {
            let packet = Packet::parse(captured.transport()).unwrap();
            let bth = packet.headers.bth;
            let (next, peer) = sides.get_mut(&captured.source()).unwrap();
            assert_eq!(bth.dest_qpn, *peer, "{name}");
            if !bth.opcode.is_request() {
                continue;
            }
            assert_eq!(bth.psn.distance_from(*next), 0, "{name}");
            // A READ takes a PSN for each packet of its response.
            let answers = match (bth.opcode, packet.headers.reth) {
                (Opcode::RcReadRequest, Some(reth)) => reth.length.div_ceil(path_mtu).max(1),
                _ => 1,
            };
            *next = next.add(answers);
            if let Some(deth) = packet.headers.deth {
                assert_eq!(deth.qkey, Qkey(0x1111_1111), "{name}");
                assert_eq!(
                    u64::from(deth.src_qpn.get()),
                    number(&record["a"]["qpn"]),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn atomics_return_the_recorded_values() {
    let record = record("rc_atomic");
    let returned: Vec<_> = record["ops"]
        .as_array()
        .unwrap()
        .iter()
        // The bytes in the memory of a little-endian host.
        .map(|operation| u64::from_str_radix(operation["returned"].as_str().unwrap(), 16).unwrap())
        .map(u64::swap_bytes)
        .collect();
    let captured: Vec<_> = captures::packets("rxe-6.1/rc_atomic")
        .iter()
        .filter_map(|c| Packet::parse(c.transport()).unwrap().headers.atomic_ack)
        .collect();
    assert_eq!(captured, returned);
    assert_eq!(captured.len(), 4);
}

#[test]
fn only_the_solicited_send_asks_for_an_event() {
    let solicited: Vec<_> = captures::packets("rxe-6.1/rc_send")
        .iter()
        .map(|c| Packet::parse(c.transport()).unwrap().headers.bth.solicited)
        .collect();
    assert_eq!(solicited.iter().filter(|&&s| s).count(), 1);
}
