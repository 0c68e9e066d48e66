//! Replies that the responder owes its peer: acknowledgements, READ responses and atomic results.
//!
//! They are sent in PSN order, because a response to a later request acknowledges all earlier ones
//! (IBTA 9.7.5.1.1).

use std::collections::VecDeque;

use airdma_wire::padded::pad_packet;
use airdma_wire::{Aeth, Bth, Headers, NakCode, Opcode, Psn, Qpn, Rkey, Syndrome, Transport};

use crate::counter::Counter;
use crate::host::{Host, RemoteFault};
use crate::request_packet::{pad_of, padding_of, request_bth};

/// Credit code of an ACK that does not use end-to-end flow control (IBTA 9.7.7.2).
const NO_CREDITS: u8 = 0x1f;

#[derive(Clone, Copy, Debug)]
enum Body {
    Acknowledge(Syndrome),
    Atomic { original: u64 },
    Read(ReadResponse),
}

/// The peer that replies go to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Tag of the packets of a run; others are tagged when they are written.
    pub(crate) tag: u16,
    pub(crate) qpn: Qpn,
    /// RC, or XRC.
    pub(crate) transport: Transport,
}

/// A READ that is being answered, packet by packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadResponse {
    pub(crate) rkey: Rkey,
    pub(crate) va: u64,
    pub(crate) length: u32,
    /// Bytes answered so far.
    pub(crate) done: u32,
    /// Payload of each packet except the last.
    pub(crate) payload: u32,
    /// Whether all packets are middle ones, of one length (LRETH version 2).
    pub(crate) is_equal: bool,
    /// PSNs of the whole response.
    pub(crate) packets: u32,
}

#[derive(Clone, Copy, Debug)]
struct Reply {
    /// PSN of the reply; for a READ, of its first packet.
    psn: Psn,
    msn: u32,
    body: Body,
    /// Whether it repeats a response that was complete, so that it is not one more in flight.
    repeated: bool,
}

impl Reply {
    fn packets(&self) -> u32 {
        match self.body {
            Body::Read(read) => read.packets,
            Body::Acknowledge(_) | Body::Atomic { .. } => 1,
        }
    }

    fn covers(&self, psn: Psn) -> bool {
        let ahead = psn.distance_from(self.psn);
        ahead >= 0 && i64::from(ahead) < i64::from(self.packets())
    }
}

/// The queue of replies.
///
/// It is bounded: one entry for each READ and atomic that the peer may have in flight, and one
/// acknowledgement between two of them.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    queue: VecDeque<Reply>,
}

impl Replies {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Whether one ACK is all that is owed.
    pub(crate) fn is_acknowledgement(&self) -> bool {
        let is_ack = |reply: &Reply| matches!(reply.body, Body::Acknowledge(Syndrome::Ack { .. }));
        self.queue.len() == 1 && self.queue.front().is_some_and(is_ack)
    }

    /// READs and atomics without a complete response.
    pub(crate) fn answers_due(&self) -> usize {
        self.queue
            .iter()
            .filter(|reply| !reply.repeated && !matches!(reply.body, Body::Acknowledge(_)))
            .count()
    }

    /// Owes an ACK for everything up to `psn`; a waiting one is updated.
    pub(crate) fn owe_ack(&mut self, psn: Psn, msn: u32) {
        let body = Body::Acknowledge(Syndrome::Ack {
            credits: NO_CREDITS,
        });
        match self.queue.back_mut() {
            Some(reply) if matches!(reply.body, Body::Acknowledge(Syndrome::Ack { .. })) => {
                reply.psn = psn;
                reply.msn = msn;
            }
            _ => self.queue.push_back(Reply {
                psn,
                msn,
                body,
                repeated: false,
            }),
        }
    }

    /// Takes the next reply if it is an ACK, to be written by [`emit_acknowledge`].
    ///
    /// Returns its PSN and MSN: the `latest` if no other reply follows.
    pub(crate) fn take_acknowledgement(&mut self, latest: (Psn, u32)) -> Option<(Psn, u32)> {
        let Reply {
            body: Body::Acknowledge(Syndrome::Ack { .. }),
            psn,
            msn,
            ..
        } = *self.queue.front()?
        else {
            return None;
        };
        self.queue.pop_front();
        Some(if self.queue.is_empty() {
            latest
        } else {
            (psn, msn)
        })
    }

    /// Owes a NAK, which replaces an ACK before it.
    pub(crate) fn refuse(&mut self, psn: Psn, msn: u32, syndrome: Syndrome) {
        while self
            .queue
            .back()
            .is_some_and(|reply| matches!(reply.body, Body::Acknowledge(_)))
        {
            self.queue.pop_back();
        }
        self.queue.push_back(Reply {
            psn,
            msn,
            body: Body::Acknowledge(syndrome),
            repeated: false,
        });
    }

    /// Owes a READ response from `psn` on. A duplicate request restarts the response.
    pub(crate) fn read(&mut self, psn: Psn, msn: u32, read: ReadResponse, repeated: bool) {
        let reply = Reply {
            psn,
            msn,
            body: Body::Read(read),
            repeated,
        };
        let same = self.queue.iter_mut().find(|queued| {
            matches!(queued.body, Body::Read(_)) && (queued.covers(psn) || reply.covers(queued.psn))
        });
        match same {
            Some(queued) => {
                *queued = Reply {
                    repeated: queued.repeated,
                    ..reply
                }
            }
            None => self.insert(reply),
        }
    }

    /// Owes the result of an atomic.
    pub(crate) fn atomic(&mut self, psn: Psn, msn: u32, original: u64, repeated: bool) {
        let known = self
            .queue
            .iter()
            .any(|queued| matches!(queued.body, Body::Atomic { .. }) && queued.psn == psn);
        if !known {
            self.insert(Reply {
                psn,
                msn,
                body: Body::Atomic { original },
                repeated,
            });
        }
    }

    /// Inserts a reply before those for its PSN or later ones: an ACK would say that it went
    /// before.
    fn insert(&mut self, reply: Reply) {
        let at = self
            .queue
            .iter()
            .position(|queued| queued.psn.distance_from(reply.psn) >= 0)
            .unwrap_or(self.queue.len());
        self.queue.insert(at, reply);
    }

    /// Writes the next reply packet into `out` and returns its length without ICRC.
    ///
    /// If the memory of a READ is gone, the reply becomes a NAK, and is written.
    #[inline]
    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        peer: &Peer,
        host: &mut H,
        out: &mut [u8],
    ) -> Option<(usize, Result<(), RemoteFault>)> {
        let reply = *self.queue.front()?;
        match reply.body {
            Body::Acknowledge(syndrome) => {
                self.queue.pop_front();
                host.count(counter_of(syndrome));
                Some((emit_reply(&reply, syndrome, peer, out), Ok(())))
            }
            Body::Atomic { original } => {
                self.queue.pop_front();
                let mut headers = response(Opcode::RcAtomicAcknowledge, &reply, peer);
                headers.aeth = Some(acknowledging(reply.msn));
                headers.atomic_ack = Some(original);
                Some((headers.emit(out), Ok(())))
            }
            Body::Read(read) => match emit_read(&reply, &read, peer, host, out) {
                Ok((len, carried)) => {
                    self.advance_read(read.done + carried);
                    Some((len, Ok(())))
                }
                Err(fault) => {
                    let psn = reply.psn.add(read.done / read.payload);
                    self.clear();
                    let nak = Syndrome::Nak(NakCode::RemoteAccessError);
                    host.count(counter_of(nak));
                    let refused = Reply { psn, ..reply };
                    Some((emit_reply(&refused, nak, peer, out), Err(fault)))
                }
            },
        }
    }

    /// The READ in progress, if its first packet was written, and the PSN of the next one.
    pub(crate) fn read_in_progress(&self) -> Option<(ReadResponse, Psn)> {
        let reply = self.queue.front()?;
        match reply.body {
            Body::Read(read) if read.done > 0 => {
                Some((read, reply.psn.add(read.done / read.payload)))
            }
            Body::Read(_) | Body::Acknowledge(_) | Body::Atomic { .. } => None,
        }
    }

    pub(crate) fn advance_read(&mut self, done: u32) {
        let Some(Reply {
            body: Body::Read(read),
            ..
        }) = self.queue.front_mut()
        else {
            return;
        };
        read.done = done;
        if done >= read.length {
            self.queue.pop_front();
        }
    }
}

/// Headers of a response. The opcode is that of RC; XRC's responses differ in nothing else (IBTA
/// A14.3.2).
fn response(opcode: Opcode, reply: &Reply, peer: &Peer) -> Headers {
    Headers::new(Bth {
        opcode: (opcode.on(peer.transport)).expect("only RC and XRC have responses"),
        dest_qpn: peer.qpn,
        psn: reply.psn,
        ..request_bth()
    })
}

fn acknowledging(msn: u32) -> Aeth {
    Aeth {
        syndrome: Syndrome::Ack {
            credits: NO_CREDITS,
        },
        msn,
    }
}

/// Writes an ACK. Returns its length without ICRC.
pub(crate) fn emit_acknowledge(psn: Psn, msn: u32, peer: &Peer, out: &mut [u8]) -> usize {
    let syndrome = acknowledging(msn).syndrome;
    let reply = Reply {
        psn,
        msn,
        body: Body::Acknowledge(syndrome),
        repeated: false,
    };
    emit_reply(&reply, syndrome, peer, out)
}

fn emit_reply(reply: &Reply, syndrome: Syndrome, peer: &Peer, out: &mut [u8]) -> usize {
    let mut headers = response(Opcode::RcAcknowledge, reply, peer);
    headers.aeth = Some(Aeth {
        syndrome,
        msn: reply.msn,
    });
    headers.emit(out)
}

/// Writes one READ response packet; returns its length and the bytes of its payload.
fn emit_read<H: Host>(
    reply: &Reply,
    read: &ReadResponse,
    peer: &Peer,
    host: &mut H,
    out: &mut [u8],
) -> Result<(usize, u32), RemoteFault> {
    let carried = (read.length - read.done).min(read.payload);
    let first = read.done == 0;
    let last = read.done + carried == read.length;
    if read.is_equal {
        return emit_equal(reply, read, carried, peer, host, out);
    }
    let opcode = match (first, last) {
        (true, true) => Opcode::RcReadResponseOnly,
        (true, false) => Opcode::RcReadResponseFirst,
        (false, false) => Opcode::RcReadResponseMiddle,
        (false, true) => Opcode::RcReadResponseLast,
    };
    let mut headers = response(opcode, reply, peer);
    headers.bth.psn = reply.psn.add(read.done / read.payload);
    headers.bth.pad = pad_of(carried);
    if opcode != Opcode::RcReadResponseMiddle {
        headers.aeth = Some(acknowledging(reply.msn));
    }
    let start = headers.emit(out);
    let end = start + carried as usize;
    if carried > 0 {
        let va = read.va.wrapping_add(u64::from(read.done));
        host.read_remote(read.rkey, va, &mut out[start..end])?;
    }
    let padded = end + usize::from(headers.bth.pad);
    out[end..padded].fill(0);
    Ok((padded, carried))
}

/// Writes one packet of a READ response whose packets are of one length: a middle one, the last of
/// several padded.
fn emit_equal<H: Host>(
    reply: &Reply,
    read: &ReadResponse,
    carried: u32,
    peer: &Peer,
    host: &mut H,
    out: &mut [u8],
) -> Result<(usize, u32), RemoteFault> {
    let padding = if read.packets > 1 {
        padding_of(carried, read.payload)
    } else {
        0
    };
    let mut headers = response(Opcode::RcReadResponseMiddle, reply, peer);
    headers.bth.psn = reply.psn.add(read.done / read.payload);
    headers.bth.pad = if padding == 0 { pad_of(carried) } else { 0 };
    let start = headers.emit(out);
    let end = start + carried as usize;
    let va = read.va.wrapping_add(u64::from(read.done));
    host.read_remote(read.rkey, va, &mut out[start..end])?;
    let padded = end + usize::from(padding) + usize::from(headers.bth.pad);
    if padding > 0 {
        pad_packet(&mut out[..padded], padding);
    } else {
        out[end..padded].fill(0);
    }
    Ok((padded, carried))
}

fn counter_of(syndrome: Syndrome) -> Counter {
    match syndrome {
        Syndrome::Ack { .. } => Counter::AcksSent,
        Syndrome::RnrNak { .. } => Counter::RnrNaksSent,
        Syndrome::Nak(_) | Syndrome::Reserved(_) => Counter::NaksSent,
    }
}
