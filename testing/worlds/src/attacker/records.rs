//! Forged packets of records, of the answers to them, and of reads.
//!
//! The attacker knows queue pairs, addresses and numbers of messages, and either the Q_Key or the
//! key of the memory, never both: with both it is a source of records. A SEND has no key, so its
//! Q_Key is wrong. Instances and tokens are guessed.

use super::Attacker;
use super::forge::Kind;
use crate::records::{RecordEnd, SLOT, SLOTS};
use crate::world::{QKEY, World};
use airdma_wire::{
    Bth, Deth, Opcode, Psn, Qkey, Qpn, RECORD_ACK_LEN, RECORD_READ_LEN_MAX, Rceth, ReadRanges,
    RecordAck, RecordAnswer, RecordEcho, RecordHeaders, RecordRead, RecordReadKind, Reth, Rkey,
    UnitRange,
};
use std::net::IpAddr;

/// How far the number of a forged message is from the next one of its source.
const NEAR: u64 = 6;

impl Attacker {
    /// A packet for the queue pair for records of a host.
    pub(super) fn at_records(
        &mut self,
        world: &World,
        kind: Kind,
    ) -> Option<(usize, IpAddr, Vec<u8>)> {
        let hosts = world.hosts.len();
        let (victim, other) = (self.random.index(hosts), self.random.index(hosts));
        let source = if self.random.chance(0.1) {
            self.bystander
        } else {
            world.hosts[other].address
        };
        let (target, of) = (world.records.get(victim)?, world.records.get(other)?);
        let ends = (target.number, of.number);
        let bytes = if kind == Kind::Record {
            self.record(target, ends, of.count)
        } else if kind == Kind::RecordAck {
            self.record_ack(ends, target.count)
        } else if kind == Kind::RecordRead {
            self.record_read(target, ends)
        } else {
            self.record_echo(ends, target.count)
        };
        Some((victim, source, bytes))
    }

    fn instance_of_records(&mut self) -> Psn {
        Psn::new(self.random.below(1 << 24) as u32)
    }

    /// A number near the next one.
    fn near(&mut self, count: u32) -> u32 {
        let ahead = self.random.below(2 * NEAR) as u32;
        let any = self.random.next_u64() as u32;
        let near = count.wrapping_add(ahead).wrapping_sub(NEAR as u32);
        self.random.pick(&[near, near, near, any])
    }

    fn record(&mut self, target: &RecordEnd, (to, from): (Qpn, Qpn), count: u32) -> Vec<u8> {
        let is_send = self.random.chance(0.3);
        let is_reliable = is_send || self.random.chance(0.3);
        // An answer to a read: the nonce is guessed, too.
        let is_answer = !is_reliable && self.random.chance(0.3);
        let count = if is_answer { target.reads.count } else { count };
        let has_key = self.random.chance(0.5);
        let unit = self.random.pick(&[16, 64, 256, 1000]);
        let units = self.random.below(4) as u32;
        let tail = 1 + self.random.below(u64::from(unit)) as u32;
        let length = units * unit + tail;
        let at = self.random.below(u64::from(units) + 1) as u32;
        let payload_len = if at == units { tail } else { unit };
        let wrong = self.random.next_u64() as u32;
        let (va, key) = (target.va, target.key);
        let near = self.random.below((SLOTS * SLOT) as u64);
        let mut headers = RecordHeaders {
            bth: Bth::new(Opcode::UdSendOnly, to, self.instance_of_records()),
            deth: Deth {
                qkey: if has_key || is_send {
                    Qkey(if wrong == QKEY.0 { !wrong } else { wrong })
                } else {
                    QKEY
                },
                src_qpn: from,
            },
            reth: Reth {
                va: self.random.pick(&[va, va + near, u64::MAX - 8]),
                rkey: Rkey(match has_key {
                    true => key,
                    false if wrong == key => !wrong,
                    false => wrong,
                }),
                length: self.random.pick(&[length, length, length, 0, u32::MAX]),
            },
            rceth: Rceth {
                id: self.near(count),
                offset: at * unit,
                unit: self.random.pick(&[unit as u16, unit as u16, 0]),
                round: self.random.below(4) as u8,
            },
            is_send,
            token: is_reliable.then(|| self.random.next_u64()),
            read: is_answer.then(|| self.random.next_u64()),
            imm: self.random.chance(0.3).then_some([1, 2, 3, 4]),
        };
        headers.bth.ack_request = self.random.chance(0.5);
        headers.bth.solicited = self.random.chance(0.1);
        headers.bth.pad = (payload_len.wrapping_neg() % 4) as u8;
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend(self.random.bytes(payload_len as usize));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// An answer to a packet of a reliable datagram.
    fn record_ack(&mut self, (to, from): (Qpn, Qpn), count: u32) -> Vec<u8> {
        let answer = RecordAck {
            bth: Bth::new(Opcode::UdSendOnly, to, self.instance_of_records()),
            deth: Deth {
                qkey: QKEY,
                src_qpn: from,
            },
            id: self.near(count),
            token: self.random.pick(&[0, 1, u64::MAX]) ^ self.random.next_u64(),
            answer: self.random.pick(&[
                RecordAnswer::Whole,
                RecordAnswer::Arrives,
                RecordAnswer::NotReady,
                RecordAnswer::Refused,
                RecordAnswer::TooLong,
                RecordAnswer::Ended,
            ]),
            round: self.random.below(4) as u8,
            base: self.random.below(6) as u32,
            map: self.random.pick(&[0, 1, u128::MAX]),
        };
        let mut bytes = vec![0; RECORD_ACK_LEN];
        answer.emit(&mut bytes);
        bytes
    }

    /// A request to read memory, with a guessed token, or an answer to one with a guessed nonce.
    fn record_read(&mut self, target: &RecordEnd, (to, from): (Qpn, Qpn)) -> Vec<u8> {
        let kind = self.random.pick(&[
            RecordReadKind::Request,
            RecordReadKind::Request,
            RecordReadKind::Request,
            RecordReadKind::Challenge,
            RecordReadKind::Refused,
        ]);
        let mut ranges = ReadRanges::default();
        if kind == RecordReadKind::Request {
            for _ in 0..=self.random.below(4) {
                ranges.push(UnitRange {
                    first: self.random.below(4) as u32,
                    count: self.random.pick(&[1, 2, 1000, u32::MAX]),
                });
            }
        }
        let wrong = self.random.next_u64() as u32;
        let read = RecordRead {
            bth: Bth::new(Opcode::UdSendOnly, to, self.instance_of_records()),
            deth: Deth {
                qkey: self.random.pick(&[QKEY, QKEY, Qkey(wrong)]),
                src_qpn: from,
            },
            reth: Reth {
                va: self.random.pick(&[target.va, 0, u64::MAX - 8]),
                rkey: self.random.pick(&[Rkey(target.key), Rkey(wrong)]),
                length: self.random.pick(&[1, 1000, 0, u32::MAX]),
            },
            id: self.near(0),
            nonce: self.random.next_u64(),
            token: self.random.pick(&[0, 1]) * self.random.next_u64(),
            answer_qkey: QKEY,
            unit: self.random.pick(&[0, 256, 1000, u16::MAX]),
            kind,
            ranges,
        };
        let mut bytes = vec![0; RECORD_READ_LEN_MAX];
        let length = read.emit(&mut bytes);
        bytes.truncate(length);
        bytes
    }

    /// An answer to a packet of a record.
    fn record_echo(&mut self, (to, from): (Qpn, Qpn), count: u32) -> Vec<u8> {
        let echo = RecordEcho {
            dest_qpn: to,
            instance: self.instance_of_records(),
            qkey: QKEY,
            src_qpn: from,
            id: self.near(count),
            offset: self.random.below(SLOT as u64) as u32,
            socket_bytes: self.random.next_u64() as u32,
            socket_bytes_max: self.random.pick(&[0, 1, 1 << 20, u32::MAX]),
            entries: self.random.pick(&[None, Some(0), Some(1), Some(u32::MAX)]),
            asks: self.random.pick(&[false, true]),
        };
        echo.to_bytes().to_vec()
    }
}
