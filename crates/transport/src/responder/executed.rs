//! READs, atomics and FLUSHes: executed once, answered by [`Replies`](crate::replies::Replies), and
//! kept to answer their duplicates.
//!
//! See IBTA 9.4.4, 9.4.5, 9.7.5.1.3 and A19.4.3.

use airdma_wire::{Feth, Lreth, Opcode, Packet, Psn, Reth};

use super::{Fault, Responder, check_granted, check_reth, equal_min};
use crate::attributes::{Access, QpAttributes};
use crate::host::{AtomicOperation, Host, RemoteAccess};
use crate::operation::WORD_LEN;
use crate::replies::ReadResponse;
use crate::request_packet::packets_of;

/// How the response to a READ is cut into packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Payload of each packet except the last.
    pub(super) payload: u32,
    /// Whether all packets are middle ones, of one length.
    pub(super) is_equal: bool,
}

/// A READ, atomic, atomic write or FLUSH that was executed, kept to answer its duplicates (IBTA
/// 9.4.5, 9.7.5.1.3).
#[derive(Clone, Copy, Debug)]
pub(super) enum Executed {
    Read { psn: Psn, reth: Reth, cut: Cut },
    Atomic { psn: Psn, original: u64 },
    AtomicWrite { psn: Psn },
    Flush { psn: Psn },
}

impl Responder {
    pub(super) fn execute_read<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<u32, Fault> {
        let reth = packet.headers.reth.ok_or(Fault::Invalid)?;
        let path_mtu = attributes.path_mtu.bytes();
        let cut = answer_cut(packet, path_mtu, self.long_payload_max).ok_or(Fault::Invalid)?;
        self.check_answers_max(attributes)?;
        check_reth(
            attributes,
            &reth,
            Access::REMOTE_READ,
            RemoteAccess::Read,
            host,
        )?;
        let psn = packet.headers.bth.psn;
        self.message_done(host);
        self.remember(attributes, Executed::Read { psn, reth, cut });
        let response = read_response(&reth, cut);
        self.replies.read(psn, self.msn, response, false);
        Ok(response.packets)
    }

    pub(super) fn execute_atomic<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fault> {
        let eth = packet.headers.atomic_eth.ok_or(Fault::Invalid)?;
        self.check_answers_max(attributes)?;
        check_granted(attributes, Access::REMOTE_ATOMIC)?;
        if eth.va % 8 != 0 {
            return Err(Fault::Invalid);
        }
        host.check_remote(eth.rkey, eth.va, 8, RemoteAccess::Atomic)?;
        let operation = if packet.headers.bth.opcode == Opcode::RcCompareSwap {
            AtomicOperation::CompareSwap {
                compare: eth.compare,
                swap: eth.swap_add,
            }
        } else {
            AtomicOperation::FetchAdd { add: eth.swap_add }
        };
        let original = host.atomic(eth.rkey, eth.va, operation)?;
        let psn = packet.headers.bth.psn;
        self.message_done(host);
        self.remember(attributes, Executed::Atomic { psn, original });
        self.replies.atomic(psn, self.msn, original, false);
        Ok(())
    }

    pub(super) fn execute_atomic_write<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fault> {
        let reth = packet.headers.reth.ok_or(Fault::Invalid)?;
        let data = packet.payload.try_into().map_err(|_| Fault::Invalid)?;
        self.check_answers_max(attributes)?;
        if reth.length != WORD_LEN || reth.va % 8 != 0 {
            return Err(Fault::Invalid);
        }
        let (flag, access) = (Access::REMOTE_WRITE, RemoteAccess::Write);
        check_reth(attributes, &reth, flag, access, host)?;
        host.write_atomic(reth.rkey, reth.va, data)?;
        let psn = packet.headers.bth.psn;
        self.message_done(host);
        self.remember(attributes, Executed::AtomicWrite { psn });
        self.replies
            .read(psn, self.msn, empty_response(attributes), false);
        Ok(())
    }

    /// Requests are executed in their order: the WRITEs before this FLUSH are in memory, and the
    /// host checks its key and orders memory (IBTA A19.4.3).
    pub(super) fn execute_flush<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        packet: &Packet<'_>,
        host: &mut H,
    ) -> Result<(), Fault> {
        let headers = &packet.headers;
        let (Some(feth), Some(reth)) = (headers.feth, headers.reth) else {
            return Err(Fault::Invalid);
        };
        let (needs, whole) = flush_of(feth).ok_or(Fault::Invalid)?;
        self.check_answers_max(attributes)?;
        check_granted(attributes, needs)?;
        let access = RemoteAccess::Flush { needs, whole };
        host.check_remote(reth.rkey, reth.va, reth.length, access)?;
        let psn = headers.bth.psn;
        self.message_done(host);
        self.remember(attributes, Executed::Flush { psn });
        self.replies
            .read(psn, self.msn, empty_response(attributes), false);
        Ok(())
    }

    /// Handles a duplicate (IBTA 9.7.1.1, 9.7.5.1.3).
    ///
    /// SENDs and WRITEs are acknowledged and never applied again; READs are executed again within
    /// the original range; atomics return their first result; a FLUSH is answered again (IBTA
    /// oA19-14).
    pub(super) fn handle_duplicate<H: Host>(
        &mut self,
        attributes: &QpAttributes,
        packet: &Packet<'_>,
        host: &mut H,
    ) {
        let psn = packet.headers.bth.psn;
        let opcode = packet.headers.bth.opcode;
        if opcode.is_send() || opcode.is_write() {
            return match &mut self.reorder {
                Some(reorder) => {
                    reorder.owe(packet.headers.bth.ack_request);
                    self.owe_sack();
                }
                None => self.acknowledge_again(),
            };
        }
        for executed in &self.executed {
            match *executed {
                Executed::Atomic { psn: at, original }
                    if at == psn && packet.headers.atomic_eth.is_some() =>
                {
                    self.replies.atomic(psn, self.msn, original, true);
                    return;
                }
                Executed::AtomicWrite { psn: at }
                    if at == psn && opcode == Opcode::RcAtomicWrite =>
                {
                    let response = empty_response(attributes);
                    self.replies.read(psn, self.msn, response, true);
                    return;
                }
                Executed::Flush { psn: at } if at == psn && opcode == Opcode::RcFlush => {
                    let response = empty_response(attributes);
                    self.replies.read(psn, self.msn, response, true);
                    return;
                }
                Executed::Read {
                    psn: first,
                    reth,
                    cut,
                } if opcode == Opcode::RcReadRequest => {
                    let Some(again) = packet.headers.reth else {
                        continue;
                    };
                    if !is_rest_of(&again, psn, &reth, first, cut.payload) {
                        continue;
                    }
                    if host.check_remote(again.rkey, again.va, again.length, RemoteAccess::Read)
                        == Ok(())
                        || again.length == 0
                    {
                        // Its PSNs, and the payload of each, are those of the first time.
                        self.replies
                            .read(psn, self.msn, read_response(&again, cut), true);
                    }
                    return;
                }
                Executed::Atomic { .. }
                | Executed::AtomicWrite { .. }
                | Executed::Flush { .. }
                | Executed::Read { .. } => {}
            }
        }
    }

    /// Checks that the peer has no more READs and atomics in flight than agreed (IBTA 9.4.4).
    fn check_answers_max(&self, attributes: &QpAttributes) -> Result<(), Fault> {
        if self.replies.answers_due() >= usize::from(attributes.max_dest_rd_atomic) {
            return Err(Fault::Invalid);
        }
        Ok(())
    }

    fn remember(&mut self, attributes: &QpAttributes, executed: Executed) {
        while self.executed.len() >= usize::from(attributes.max_dest_rd_atomic).max(1) {
            self.executed.pop_front();
        }
        self.executed.push_back(executed);
    }
}

/// How the response to a READ is cut: in packets of the path MTU, or as the request asks for, with
/// a payload of at most `most`.
///
/// That is a multiple of four, so that middle responses have no padding. `None` if the request asks
/// for what is not allowed.
pub(super) fn answer_cut(packet: &Packet<'_>, path_mtu: u32, most: u32) -> Option<Cut> {
    if packet.payload.is_empty() {
        return Some(Cut::plain(path_mtu));
    }
    let lreth = Lreth::parse(packet.payload).ok()?;
    let payload = u32::from(lreth.payload);
    let is_equal = lreth.is_equal;
    let more_than = if is_equal {
        equal_min(path_mtu)
    } else {
        path_mtu
    };
    let is_allowed = payload > more_than && payload <= most && payload.is_multiple_of(4);
    is_allowed.then_some(Cut { payload, is_equal })
}

impl Cut {
    fn plain(path_mtu: u32) -> Self {
        Cut {
            payload: path_mtu,
            is_equal: false,
        }
    }
}

fn read_response(reth: &Reth, cut: Cut) -> ReadResponse {
    ReadResponse {
        rkey: reth.rkey,
        va: reth.va,
        length: reth.length,
        done: 0,
        payload: cut.payload,
        is_equal: cut.is_equal && reth.length > 0,
        packets: packets_of(reth.length, cut.payload),
    }
}

/// Response to an atomic write or a FLUSH: a READ response without payload, as in rxe.
fn empty_response(attributes: &QpAttributes) -> ReadResponse {
    read_response(&Reth::default(), Cut::plain(attributes.path_mtu.bytes()))
}

/// The rights that a FLUSH needs, and whether it names the whole region. `None` for a placement
/// type or selectivity level without meaning.
fn flush_of(feth: Feth) -> Option<(Access, bool)> {
    let types = [
        (Feth::GLOBAL, Access::FLUSH_GLOBAL),
        (Feth::PERSISTENT, Access::FLUSH_PERSISTENT),
    ];
    let whole = match feth.selectivity {
        Feth::RANGE => false,
        Feth::REGION => true,
        _ => return None,
    };
    let is_known = feth.placement & !(Feth::GLOBAL | Feth::PERSISTENT) == 0;
    let named = types
        .into_iter()
        .filter(|(bit, _)| feth.placement & bit != 0);
    let needs: Access = named.map(|(_, right)| right).collect();
    (is_known && !needs.is_empty()).then_some((needs, whole))
}

/// Whether a repeated READ request asks for the rest of one granted before.
///
/// A requester never goes back for a part that ends earlier, which would let a peer queue any
/// number of responses.
fn is_rest_of(again: &Reth, psn: Psn, before: &Reth, first: Psn, payload: u32) -> bool {
    let Ok(index) = u32::try_from(psn.distance_from(first)) else {
        return false;
    };
    if index >= packets_of(before.length, payload) {
        return false;
    }
    let offset = index * payload;
    // A READ of no bytes needs no key, and may name any.
    (again.rkey == before.rkey || again.length == 0)
        && again.va == before.va.wrapping_add(u64::from(offset))
        && again.length == before.length - offset.min(before.length)
}
