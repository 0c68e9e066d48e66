//! What the programs at both ends of a capture did: the JSON beside it, and the little that it
//! leaves out.

use std::net::{IpAddr, Ipv6Addr};

use airdma_captures::Captured;
use airdma_transport::{Operation, QpType, Status};
use airdma_wire::{Packet, PathMtu, Psn, Qpn, Rkey};
use serde_json::Value;

use crate::memory::Region;

/// One of the two ends: `a` asks, `b` answers, except in `rc_bidir`, where they take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    A,
    B,
}

impl End {
    pub fn peer(self) -> Self {
        match self {
            End::A => End::B,
            End::B => End::A,
        }
    }
}

/// Bytes registered at each end: in `rc_nak_access_read` the first address behind them is asked
/// for.
const BUFFER_LEN: u64 = 0x1_0000;

/// A queue pair and its memory, as recorded.
#[derive(Clone, Debug)]
pub struct Side {
    pub address: IpAddr,
    pub qpn: Qpn,
    /// First PSN it sends.
    pub psn: Psn,
    /// Where its receives begin.
    pub receives_va: u64,
    pub regions: Vec<Region>,
}

/// A completion of a program. For `None`, only the number was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    pub wr_id: u64,
    pub status: Status,
    pub opcode: u64,
    pub byte_len: u64,
    pub imm: Option<u32>,
}

/// A send request, in the order of posting.
#[derive(Clone, Debug)]
pub struct Posted {
    /// Place among all requests, which is also the id of the receive that it fills.
    pub wr_id: u64,
    pub from: End,
    pub operation: Operation,
    pub length: u32,
    /// Its bytes, or as many for what it brings.
    pub message: Vec<u8>,
    /// What it reads stood there from the beginning.
    pub found: Option<(u64, Vec<u8>)>,
    /// What it reads was put there just before.
    pub put: Option<(u64, Vec<u8>)>,
    pub signalled: bool,
    pub solicited: bool,
    /// A receive was posted for it.
    pub has_receive: bool,
    /// What an atomic returned and left behind, in the order of memory, where that was recorded.
    pub returned: Option<[u8; 8]>,
    pub remote_after: Option<[u8; 8]>,
}

/// A fetch-and-add or a compare-and-swap.
pub fn is_atomic(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
    )
}

/// Byte i of every message is 7 * i + seed.
fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (7 * i + usize::from(seed)) as u8)
        .collect()
}

/// Requests that were posted together, and what came of them.
#[derive(Debug)]
pub struct Batch {
    pub posted: Vec<Posted>,
    pub sent: Vec<Recorded>,
    pub received: Vec<Option<Recorded>>,
}

/// What the programs set and did, and the JSON does not say.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Local ACK timeout of `a`.
    pub timeout: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    /// Bytes of each receive, and from one to the next.
    pub receive_len: u32,
    pub receive_stride: u64,
    /// Requests that had to arrive before the receives were posted.
    pub receives_follow: usize,
    /// READs found the pattern of their own seed, where nothing else had been written.
    pub filled: bool,
}

impl Setup {
    pub const USUAL: Self = Setup {
        timeout: 14,
        rnr_retry: 7,
        min_rnr_timer: 12,
        receive_len: 0x4000,
        receive_stride: 0,
        receives_follow: 0,
        filled: true,
    };

    fn of(name: &str) -> Self {
        let usual = Self::USUAL;
        match name {
            // The intervals between repetitions are those of 17 ms in a kernel that counts in 4 ms.
            "rc_loss" => Setup {
                timeout: 12,
                ..usual
            },
            "rc_rnr" => Setup {
                min_rnr_timer: 20,
                receives_follow: 2,
                ..usual
            },
            "rc_rnr_exceeded" => Setup {
                min_rnr_timer: 14,
                rnr_retry: 2,
                ..usual
            },
            "rc_nak_recv_too_short" => Setup {
                receive_len: 32,
                ..usual
            },
            "rc_pipeline" => Setup {
                receive_len: 512,
                receive_stride: 512,
                filled: false,
                ..usual
            },
            _ => usual,
        }
    }
}

#[derive(Debug)]
pub struct Record {
    pub name: &'static str,
    /// The folder of the capture, with a slash.
    pub folder: &'static str,
    pub service: QpType,
    pub path_mtu: PathMtu,
    pub a: Side,
    pub b: Side,
    pub batches: Vec<Batch>,
    pub setup: Setup,
}

impl Record {
    pub fn read(name: &'static str) -> Self {
        let json = airdma_captures::record(&format!("rxe-6.1/{name}"));
        let service = match json["transport"].as_str().unwrap() {
            "RC" => QpType::Rc,
            "UC" => QpType::Uc,
            "UD" => QpType::Ud,
            other => panic!("service {other}"),
        };
        let setup = Setup::of(name);
        Record {
            name,
            folder: "rxe-6.1/",
            service,
            path_mtu: path_mtu(number(&json["path_mtu"])),
            a: side(&json["a"]),
            b: side(&json["b"]),
            batches: batches(name, json["ops"].as_array().unwrap(), &setup),
            setup,
        }
    }

    /// The packets of the capture that belong to these queue pairs, and who sent each.
    pub fn packets(&self) -> Vec<(End, Captured)> {
        let captured = airdma_captures::packets(&format!("{}{}", self.folder, self.name));
        let of_end = |end: End, captured: &Captured| {
            let packet = Packet::parse(captured.transport()).unwrap();
            captured.source() == self.side(end).address
                && packet.headers.bth.dest_qpn == self.side(end.peer()).qpn
        };
        let sender = |captured: &Captured| {
            let mut ends = [End::A, End::B].into_iter();
            ends.find(|end| of_end(*end, captured))
        };
        let with_sender = |captured: Captured| Some((sender(&captured)?, captured));
        captured.into_iter().filter_map(with_sender).collect()
    }

    pub fn side(&self, end: End) -> &Side {
        match end {
            End::A => &self.a,
            End::B => &self.b,
        }
    }

    pub fn posted(&self) -> impl Iterator<Item = &Posted> {
        self.batches.iter().flat_map(|batch| &batch.posted)
    }

    /// Whether the request went well, as far as was recorded.
    pub fn succeeded(&self, posted: &Posted) -> bool {
        let completions = self.batches.iter().flat_map(|batch| &batch.sent);
        let of_this = completions.filter(|recorded| recorded.wr_id == posted.wr_id);
        of_this
            .into_iter()
            .all(|recorded| recorded.status == Status::Success)
    }

    /// Where the receive lies that a request fills.
    pub fn receive_va(&self, end: End, wr_id: u64) -> u64 {
        self.side(end).receives_va + wr_id * self.setup.receive_stride
    }
}

/// An entry without a request ends the batch before it; one with completions is a batch of its own.
fn batches(name: &str, entries: &[Value], setup: &Setup) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut waiting = Vec::new();
    for (wr_id, entry) in entries.iter().enumerate() {
        if entry["op"].is_string() {
            let from = match (name, wr_id % 2) {
                ("rc_bidir", 1) => End::B,
                _ => End::A,
            };
            waiting.push(posted(wr_id as u64, from, entry, setup));
        }
        let Some(sent) = entry["wc"].as_array() else {
            continue;
        };
        let mut posted = std::mem::take(&mut waiting);
        let sent: Vec<_> = sent.iter().map(recorded).collect();
        let received = received(&entry["recv_wc"]);
        for request in &mut posted {
            request.signalled = sent.iter().any(|recorded| recorded.wr_id == request.wr_id);
            request.has_receive = !received.is_empty();
        }
        batches.push(Batch {
            posted,
            sent,
            received,
        });
    }
    assert!(waiting.is_empty(), "{name} ends in the middle of a batch");
    batches
}

fn posted(wr_id: u64, from: End, entry: &Value, setup: &Setup) -> Posted {
    let va = || number(&entry["raddr"]);
    let rkey = || Rkey(number(&entry["rkey"]) as u32);
    let imm = || (number(&entry["imm"]) as u32).to_be_bytes();
    let operand = |name: &str| number(&entry[name]);
    let operation = match entry["op"].as_str().unwrap() {
        "SEND" => Operation::Send,
        "SEND_IMM" => Operation::SendImm(imm()),
        "WRITE" => Operation::Write {
            va: va(),
            rkey: rkey(),
        },
        "WRITE_IMM" => Operation::WriteImm {
            va: va(),
            rkey: rkey(),
            imm: imm(),
        },
        "READ" => Operation::Read {
            va: va(),
            rkey: rkey(),
        },
        "FETCH_ADD" => Operation::FetchAdd {
            va: va(),
            rkey: rkey(),
            add: operand("compare_add"),
        },
        "CMP_SWAP" => Operation::CompareSwap {
            va: va(),
            rkey: rkey(),
            compare: operand("compare_add"),
            swap: operand("swap"),
        },
        other => panic!("operation {other}"),
    };
    let length = number(&entry["len"]);
    let message = pattern(number(&entry["seed"]) as u8, length as usize);
    let returned = bytes(&entry["returned"]);
    let mut found = None;
    if let Operation::Read { va, .. } = operation
        && setup.filled
    {
        found = Some((va, message.clone()));
    }
    // The first atomic says what it found; the others follow from it.
    if let Operation::FetchAdd { va, .. } = operation
        && wr_id == 0
    {
        found = Some((va, returned.unwrap().to_vec()));
    }
    Posted {
        wr_id,
        from,
        operation,
        length: length as u32,
        message,
        found,
        put: None,
        signalled: false,
        solicited: entry["solicited"].as_bool().unwrap_or(false),
        has_receive: false,
        returned,
        remote_after: bytes(&entry["remote_after"]),
    }
}

fn side(json: &Value) -> Side {
    let gid: Ipv6Addr = json["gid"].as_str().unwrap().parse().unwrap();
    Side {
        address: IpAddr::V6(gid).to_canonical(),
        qpn: Qpn::new(number(&json["qpn"]) as u32),
        psn: Psn::new(number(&json["sq_psn"]) as u32),
        receives_va: number(&json["buf"]),
        regions: vec![Region {
            va: number(&json["buf"]),
            length: BUFFER_LEN,
            rkey: Rkey(number(&json["rkey"]) as u32),
        }],
    }
}

fn received(json: &Value) -> Vec<Option<Recorded>> {
    match json.as_array() {
        Some(completions) => completions.iter().map(|wc| Some(recorded(wc))).collect(),
        None if json.is_number() => vec![None; number(json) as usize],
        None => Vec::new(),
    }
}

fn recorded(json: &Value) -> Recorded {
    let status = match json["status"].as_str().unwrap() {
        "SUCCESS" => Status::Success,
        "LOC_QP_OP_ERR" => Status::LocalQpOperationError,
        "REM_ACCESS_ERR" => Status::RemoteAccessError,
        "REM_OP_ERR" => Status::RemoteOperationError,
        "RNR_RETRY_EXC_ERR" => Status::RnrRetryExceeded,
        other => panic!("status {other}"),
    };
    Recorded {
        wr_id: number(&json["wr_id"]),
        status,
        opcode: number(&json["opcode"]),
        byte_len: number(&json["byte_len"]),
        imm: json["imm"].as_u64().map(|imm| imm as u32),
    }
}

fn path_mtu(bytes: u64) -> PathMtu {
    match bytes {
        256 => PathMtu::M256,
        1024 => PathMtu::M1024,
        4096 => PathMtu::M4096,
        other => panic!("path MTU {other}"),
    }
}

/// A number, or a string of hexadecimal digits behind 0x.
fn number(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap(),
        None => value.as_u64().unwrap(),
    }
}

/// Eight bytes as hexadecimal digits, in the order of memory.
fn bytes(value: &Value) -> Option<[u8; 8]> {
    let digits = value.as_str()?;
    Some(u64::from_str_radix(digits, 16).unwrap().to_be_bytes())
}
