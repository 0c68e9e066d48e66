//! Connections of which nothing was recorded but their packets: how they were made says who is who,
//! and the requests say what the programs asked for. That it went well is seen from the programs
//! going on.

use airdma_transport::{CompletionOpcode, Operation, QpType, Status};
use airdma_wire::cm::{CmMad, CmMessage, Rep, Req};
use airdma_wire::{Headers, Opcode, Packet, Psn, Qpn, Reth};

use crate::memory::Region;
use crate::record::{Batch, End, Posted, Record, Recorded, Setup, Side};

/// Where the receives of both ends lie: nowhere that the peer could name.
const RECEIVES_VA: u64 = 1 << 62;

/// The reliable connections of a capture over which something went, in the order in which they were
/// accepted.
pub fn connections(folder: &'static str, name: &'static str) -> Vec<Record> {
    let messages = messages(&format!("{folder}{name}"));
    let mut records = Vec::new();
    for message in &messages {
        let CmMessage::Rep(rep) = message else {
            continue;
        };
        let asked = messages.iter().find_map(|message| {
            let CmMessage::Req(req) = message else {
                return None;
            };
            (req.local_id == rep.remote_id).then_some(req)
        });
        let mut record = connected(folder, name, asked.unwrap(), rep);
        record.batches = requests(&record);
        register(&mut record);
        if !record.batches.is_empty() {
            records.push(record);
        }
    }
    records
}

fn messages(capture: &str) -> Vec<CmMessage> {
    let captured = airdma_captures::packets(capture);
    let packets = captured
        .iter()
        .map(|captured| Packet::parse(captured.transport()).unwrap());
    packets
        .filter(|packet| packet.headers.bth.dest_qpn == Qpn::GSI)
        .map(|packet| CmMad::parse(packet.payload).unwrap().message)
        .collect()
}

/// Each message says where the other end starts to send.
fn connected(folder: &'static str, name: &'static str, req: &Req, rep: &Rep) -> Record {
    let side = |gid: airdma_wire::Gid, qpn, psn| Side {
        address: gid.to_ip().to_canonical(),
        qpn,
        psn,
        receives_va: RECEIVES_VA,
        regions: Vec::new(),
    };
    Record {
        name,
        folder,
        service: QpType::Rc,
        path_mtu: req.path_mtu,
        a: side(req.primary.local_gid, req.qpn, rep.psn),
        b: side(req.primary.remote_gid, rep.qpn, req.psn),
        batches: Vec::new(),
        setup: Setup {
            timeout: req.primary.ack_timeout,
            ..Setup::USUAL
        },
    }
}

/// The requests of both ends, each of one packet, as all are in these captures, and none twice.
fn requests(record: &Record) -> Vec<Batch> {
    let packets = record.packets();
    let mut next = [record.a.psn, record.b.psn];
    let mut batches = Vec::new();
    for (from, captured) in &packets {
        let packet = Packet::parse(captured.transport()).unwrap();
        let bth = &packet.headers.bth;
        if !bth.opcode.is_request() {
            continue;
        }
        let expected = &mut next[usize::from(*from == End::B)];
        assert_eq!(bth.psn, *expected, "a loss in {}", record.name);
        *expected = expected.add(1);
        let responses = packets.iter().filter(|(end, _)| end != from);
        let response = responses
            .map(|(_, captured)| Packet::parse(captured.transport()).unwrap())
            .find(|response| answers(&response.headers, bth.psn));
        let wr_id = batches.len() as u64;
        let brought = response.map(|response| response.payload.to_vec());
        batches.push(batch(posted(wr_id, *from, &packet, brought)));
    }
    batches
}

fn answers(headers: &Headers, psn: Psn) -> bool {
    headers.bth.psn == psn && headers.bth.opcode == Opcode::RcReadResponseOnly
}

fn posted(wr_id: u64, from: End, packet: &Packet<'_>, brought: Option<Vec<u8>>) -> Posted {
    let reth = packet.headers.reth;
    let (operation, message) = match (packet.opcode(), reth) {
        (Opcode::RcSendOnly, None) => (Operation::Send, packet.payload.to_vec()),
        (Opcode::RcWriteOnly, Some(Reth { va, rkey, .. })) => {
            (Operation::Write { va, rkey }, packet.payload.to_vec())
        }
        (Opcode::RcReadRequest, Some(Reth { va, rkey, length })) => {
            (Operation::Read { va, rkey }, vec![0; length as usize])
        }
        (other, _) => panic!("{other} is nothing that these programs ask for"),
    };
    Posted {
        wr_id,
        from,
        operation,
        length: message.len() as u32,
        put: (reth.map(|reth| reth.va)).zip(brought),
        message,
        found: None,
        signalled: true,
        solicited: packet.headers.bth.solicited,
        has_receive: operation == Operation::Send,
        returned: None,
        remote_after: None,
    }
}

fn batch(posted: Posted) -> Batch {
    let completed = |opcode: CompletionOpcode| Recorded {
        wr_id: posted.wr_id,
        status: Status::Success,
        opcode: opcode as u64,
        byte_len: posted.length.into(),
        imm: None,
    };
    let opcode = if posted.has_receive {
        CompletionOpcode::Send
    } else if posted.put.is_some() {
        CompletionOpcode::Read
    } else {
        CompletionOpcode::Write
    };
    let received = posted
        .has_receive
        .then(|| Some(completed(CompletionOpcode::Receive)));
    Batch {
        sent: vec![completed(opcode)],
        received: received.into_iter().collect(),
        posted: vec![posted],
    }
}

/// Opens to each end what it asks for, and no more.
fn register(record: &mut Record) {
    let mut regions = Vec::new();
    for posted in record.posted() {
        if let Operation::Write { va, rkey } | Operation::Read { va, rkey } = posted.operation {
            let length = posted.length.into();
            regions.push((posted.from.peer(), Region { va, length, rkey }));
        }
    }
    for (end, region) in regions {
        match end {
            End::A => record.a.regions.push(region),
            End::B => record.b.regions.push(region),
        }
    }
}
