//! The rate of Write-Records: what leaves now, by the window to each host that they go to
//! ([`crate::tables::record_peers`]), which answers open ([`super::record_echoes`]).
//!
//! A queue pair has many destinations. In its turn it sends the requests whose destinations have
//! room, in the order in which they were posted; it waits for the windows of the others.
//!
//! Datagrams to a process in air mode, records or not, take turns with the connections to it at its
//! pacer. In a turn all go to one such process, and the queue pair waits for one pacer at a time:
//! that of the first datagram that has room.

use super::record_echoes::question;
use super::state::WorkerState;
use super::transmit::{Admitted, Sent, TurnEnd, seal_packet};
use crate::air::Weight;
use crate::counter_names::EngineCounter;
use crate::index::{AirIndex, PeerIndex, QpIndex};
use crate::limits::PACKET_LEN_MAX;
use crate::memory::RunSums;
use crate::seal::SEALED_LEN_MAX;
use crate::seal::datagrams::{Name, Readiness};
use crate::tables::destination::destination;
use crate::tables::qp_host::QpHost;
use crate::tables::qp_table::QpSlot;
use crate::tables::record_peers::{Question, RecordPeerIndex, SentRecord, Way};
use crate::tables::record_targets::Asker;
use airdma_port::{Destination, TransmitBatch};
use airdma_transport::{NextDatagram, Path, QueuePair, RecordForm, SentDatagram, Time};
use airdma_wire::Psn;

/// Requests that one turn looks at, most of which may have no room.
const LOOKS_MAX: usize = 256;

/// How far a turn has looked for datagrams that may leave.
#[derive(Default)]
struct Look {
    /// Those before this place may not, or have left.
    place: u64,
    /// How many may not.
    refused: usize,
    /// Reads before this place may not be answered.
    read: usize,
    /// Such an answer left last.
    was_read: bool,
}

/// Which datagram of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// A reliable one, or an answer.
    Reliable,
    /// The one at this place in the queue.
    Posted(u64),
    /// Part of the answer to the read at this place.
    Read(usize),
}

/// The next datagram of a turn.
struct Next {
    which: Which,
    path: Path,
    to: Destination,
    name: Name,
    /// The host whose window it takes from.
    peer: Option<RecordPeerIndex>,
    asks: bool,
    /// It begins a Write-Record.
    begins: bool,
    /// Posted requests alone wait to be sent, in the clear.
    is_alone: bool,
}

impl Next {
    fn is_reliable(&self) -> bool {
        self.which == Which::Reliable
    }
}

impl WorkerState {
    /// As `fill_turn`, for a datagram queue pair whose datagrams have windows or pacers: those of
    /// their destinations. Returns also the peer whose pacer they asked.
    ///
    /// # Errors
    /// [`TurnEnd::Paced`]: nothing may leave now.
    #[inline(never)] // other turns save no registers for it
    pub(super) fn fill_by_destination(
        &mut self,
        index: QpIndex,
        now: Time,
        admitted: Admitted,
        batch: &mut TransmitBatch,
    ) -> Result<(Sent, Option<AirIndex>), TurnEnd> {
        let mut sent = Sent::NOTHING;
        let (mut look, mut window) = (Look::default(), None);
        // The pacer that the first datagram asked, if there was one to ask.
        let (mut asked, mut allowance) = (None, admitted.allowance);
        sent.end = loop {
            if sent.bytes >= allowance {
                break TurnEnd::Used;
            }
            if admitted.limit.is_some_and(|limit| sent.limited >= limit) {
                break TurnEnd::NothingToSend;
            }
            let Some(next) = self.next_record(index, now, &mut look) else {
                break TurnEnd::NothingToSend;
            };
            let pacer = self.pacer_of(&next.name);
            if asked.is_none() {
                let Some(permit) = self.ask_pacer(index, pacer, next.to.tos, now) else {
                    self.leave_line(index);
                    break TurnEnd::Paced;
                };
                allowance = allowance.min(i64::try_from(permit).unwrap_or(i64::MAX));
                asked = Some(pacer);
            } else if asked != Some(pacer) {
                break TurnEnd::Used;
            }
            let Some(out) = batch.reserve(SEALED_LEN_MAX) else {
                break TurnEnd::BatchFull;
            };
            let Some((clear, len)) = self.write_record(index, now, &next, &mut window, out) else {
                if next.is_reliable() {
                    break TurnEnd::NothingToSend;
                }
                continue;
            };
            sent.limited += clear as u64;
            sent.bytes += len.unwrap_or(clear) as i64;
            let Some(len) = len else {
                continue;
            };
            let mut to = next.to;
            if let Some(pacer) = pacer {
                to.tos = self.air.traffic_class(pacer, to.tos);
            }
            batch.commit(len, to);
            sent.packets += 1;
            if next.is_alone {
                self.fill_alike(
                    index,
                    now,
                    (&next, &look),
                    (&admitted, allowance),
                    batch,
                    &mut sent,
                );
            }
        };
        let is_paced = sent.end == TurnEnd::Paced;
        if asked.is_none() && !is_paced {
            self.ask_pacer(index, None, 0, now);
        }
        while let Some(left) = self.crowded_out.pop() {
            self.scheduler.let_all_go(&mut self.qps, left);
        }
        self.join_released();
        let offered = (self.qps.slot(index)).and_then(|slot| slot.offered.take());
        let windows = [window, offered.filter(|_| offered != window)];
        for window in windows.into_iter().flatten() {
            self.scheduler.unblock(&mut self.qps, window);
        }
        if is_paced {
            return Err(TurnEnd::Paced);
        }
        Ok((sent, asked.flatten()))
    }

    /// Adds further packets of Write-Records to the destination of the last one, as
    /// [`fill_by_destination`](Self::fill_by_destination) would: it goes on where they end.
    fn fill_alike(
        &mut self,
        index: QpIndex,
        now: Time,
        (last, look): (&Next, &Look),
        (admitted, allowance): (&Admitted, i64),
        batch: &mut TransmitBatch,
        sent: &mut Sent,
    ) {
        let (Some(peer), Some(slot)) = (last.peer, self.qps.slot(index)) else {
            return;
        };
        let QpSlot { qp, side, .. } = slot;
        let mut host = QpHost {
            side,
            device: &mut self.device,
            counters: &mut self.counters,
            sums: RunSums::default(),
        };
        let to = last.name.number;
        let is_host = !last.name.remote.is_multicast();
        let (peers, windows) = (&mut self.record_peers, &mut self.scheduler.peers);
        let pads = peers.takes_padded(peer, to);
        while sent.bytes < allowance
            && admitted.limit.is_none_or(|limit| sent.limited < limit)
            && qp.has_records()
            && let Some(asks) = peers.admit(peer, windows)
            && let Some(next) = qp.next_datagram_at(look.place)
            && (next.path, next.qpn) == (last.path, to)
        {
            let mut asks = asks && is_host;
            if next.begins && is_host {
                match peers.admit_next(peer, to) {
                    Some(is_one_of_the_last) => asks |= is_one_of_the_last,
                    None => return,
                }
            }
            let Some(out) = batch.reserve(PACKET_LEN_MAX) else {
                return;
            };
            let form = RecordForm { asks, pads };
            let Some(packet) = qp.poll_datagram_at(next.place, form, &mut host, out) else {
                return;
            };
            let question = packet.part.filter(|_| asks).map(|part| Question {
                from: qp.qpn(),
                to,
                instance: packet.instance,
                part,
            });
            let len = packet.transmit.len;
            let record = SentRecord {
                len,
                begins: next.begins.then_some(to),
                question,
            };
            peers.note_sent(peer, record, now, windows);
            batch.commit_another(len);
            sent.limited += len as u64;
            sent.bytes += len as i64;
            sent.packets += 1;
        }
    }

    /// The peer whose pacer decides on a datagram. A silent one is not asked: connections find out
    /// whether it is gone.
    fn pacer_of(&self, name: &Name) -> Option<AirIndex> {
        let pacer = self.air.pacer_of((name.remote, name.local), name.number)?;
        let is_silent = (self.scheduler.peers).is_host_silent(name.remote, pacer);
        (!is_silent).then_some(pacer)
    }

    /// Asks the pacer of a peer how many bytes may leave now; `None`: none, and the queue pair will
    /// be called. It asks one at a time, so it does not wait for another one any more.
    pub(super) fn ask_pacer(
        &mut self,
        index: QpIndex,
        pacer: Option<AirIndex>,
        tos: u8,
        now: Time,
    ) -> Option<u64> {
        let slot = self.qps.slot(index)?;
        if slot.datagram_pacer != pacer {
            let waited = std::mem::take(&mut slot.waits);
            if let Some(before) = std::mem::replace(&mut slot.datagram_pacer, pacer)
                && let Some(next) = self.air.pass(before, index, waited)
            {
                self.scheduler.give_turn(&mut self.qps, next);
            }
        }
        let Some(pacer) = pacer else {
            return Some(u64::MAX);
        };
        let slot = self.qps.slot(index)?;
        // As connections, but datagrams fill no buffer of the peer's program.
        let wanted = if slot.hungry && self.air.is_limited_by_path(pacer) {
            u64::MAX
        } else {
            PACKET_LEN_MAX as u64
        };
        let asks = (index, Weight::of(tos));
        self.air.admit(pacer, asks, wanted, &mut slot.waits, now)
    }

    /// Puts queue pairs in line whose targets have entries.
    pub(super) fn join_released(&mut self) {
        while let Some(index) = self.record_peers.pop_released() {
            self.scheduler.join(&mut self.qps, index);
        }
    }

    fn leave_line(&mut self, index: QpIndex) {
        let turn = self.qps.slot(index).map(|slot| &mut slot.turn);
        self.scheduler.line.leave(turn);
    }

    /// The next datagram of a queue pair that may leave now. The queue pair waits for the windows
    /// of those before it.
    fn next_record(&mut self, index: QpIndex, now: Time, look: &mut Look) -> Option<Next> {
        let slot = self.qps.slot(index)?;
        loop {
            let reliable = slot.qp.next_reliable_datagram(now);
            let next = match reliable {
                Some((path, qpn)) => Some((Which::Reliable, NextDatagram::part(path, qpn))),
                None => next_windowed(&slot.qp, look),
            };
            let Some((which, next)) = next else {
                // Reliable datagrams have windows of their own.
                slot.qp.pass_turn();
                slot.qp.next_reliable_datagram(now)?;
                continue;
            };
            let number = next.qpn;
            let rows = &self.device.rows;
            let to = destination(&next.path, rows);
            let local = rows.get(usize::from(to.source_index)).copied().flatten();
            let way = Way {
                local: local.unwrap_or(to.address),
                remote: to.address,
            };
            let mut admitted = Some((None, false));
            if which != Which::Reliable && slot.qp.has_records() {
                let windows = &mut self.scheduler.peers;
                let (peer, left) = self.record_peers.find_or_add(way, windows, now);
                self.crowded_out.extend(left);
                // No member of a group answers.
                let is_host = !way.remote.is_multicast();
                admitted = (self.record_peers.admit(peer, windows))
                    .map(|asks| (Some(peer), asks && is_host));
                if admitted.is_none() {
                    self.record_peers.wait(peer, windows, index);
                }
                if next.begins
                    && is_host
                    && let Some((_, asks)) = &mut admitted
                {
                    let asker = || Asker {
                        index,
                        number: slot.qp.qpn(),
                        instance: slot.qp.record_instance().unwrap_or_default(),
                        qkey: next.qkey,
                    };
                    match self.record_peers.admit_message(peer, number, asker, now) {
                        Some(is_one_of_the_last) => *asks |= is_one_of_the_last,
                        None => admitted = None,
                    }
                }
            }
            let name = Name {
                local: way.local,
                remote: way.remote,
                number,
            };
            if let Some(datagrams) = slot.datagrams.as_deref_mut()
                && admitted.is_some()
            {
                let (ready, due) = datagrams.prepare(name, to, now, &mut self.random);
                self.scheduler.keying.set(index, due);
                admitted = admitted.filter(|_| ready != Readiness::Waits);
            }
            match (admitted, which) {
                (Some((peer, asks)), _) => {
                    look.was_read = matches!(which, Which::Read(_));
                    return Some(Next {
                        which,
                        path: next.path,
                        to,
                        name,
                        peer,
                        asks,
                        begins: next.begins,
                        is_alone: matches!(which, Which::Posted(_))
                            && slot.datagrams.is_none()
                            && slot.qp.has_only_posted_datagrams(),
                    });
                }
                (None, Which::Posted(place)) => {
                    look.refused += 1;
                    look.place = place + 1;
                }
                (None, Which::Read(place)) => look.read = place + 1,
                // It waits for keys.
                (None, Which::Reliable) => return None,
            }
        }
    }

    /// Writes a packet into `out`. Returns its length in the clear, and the one to send; none if
    /// the peer did not agree on keys. `None`: there is no packet.
    fn write_record(
        &mut self,
        index: QpIndex,
        now: Time,
        next: &Next,
        window: &mut Option<PeerIndex>,
        out: &mut [u8],
    ) -> Option<(usize, Option<usize>)> {
        let QpSlot {
            qp,
            side,
            seal,
            datagrams,
            ..
        } = self.qps.slot(index)?;
        let mut host = QpHost {
            side,
            device: &mut self.device,
            counters: &mut self.counters,
            sums: RunSums::default(),
        };
        let room = &mut out[..PACKET_LEN_MAX];
        let sent = match next.which {
            Which::Posted(place) => {
                let to = next.name.number;
                let pads = |peer| self.record_peers.takes_padded(peer, to);
                let form = RecordForm {
                    asks: next.asks,
                    pads: next.peer.is_some_and(pads),
                };
                qp.poll_datagram_at(place, form, &mut host, room)?
            }
            Which::Read(place) => qp.poll_read(place, next.asks, &mut host, room)?,
            Which::Reliable => SentDatagram {
                transmit: qp.poll_reliable_datagram(now, &mut host, room)?,
                part: None,
                instance: Psn::default(),
            },
        };
        let (clear, part) = (sent.transmit.len, sent.part);
        let mut len = clear;
        if datagrams.is_some() {
            let Some(sealed) = seal_packet(seal, datagrams, Some(next.name), out, clear) else {
                host.counters.count(EngineCounter::DropUnkeyed);
                return Some((clear, None));
            };
            len = sealed;
        }
        if let Some(peer) = next.peer {
            let question = part.filter(|_| next.asks).map(|part| Question {
                from: qp.qpn(),
                to: next.name.number,
                instance: sent.instance,
                part,
            });
            let windows = &mut self.scheduler.peers;
            let peers = &mut self.record_peers;
            let packet = SentRecord {
                len,
                begins: next.begins.then_some(next.name.number),
                question,
            };
            *window = Some(peers.note_sent(peer, packet, now, windows));
        }
        Some((clear, Some(len)))
    }

    /// Gives up Write-Records that were not answered in time.
    #[cold]
    pub(super) fn expire_record_peers(&mut self, now: Time) {
        let mut room: Vec<PeerIndex> = std::mem::take(&mut self.crowded_out);
        let windows = &mut self.scheduler.peers;
        let mut queries = std::mem::take(&mut self.record_queries);
        let smaller = (self.record_peers).expire(now, windows, &mut room, &mut queries);
        for query in queries.drain(..) {
            self.owe(question(&query));
        }
        self.record_queries = queries;
        self.join_released();
        for _ in 0..smaller {
            self.counters.count(EngineCounter::WindowDecreases);
        }
        for window in room.drain(..) {
            self.scheduler.let_all_go(&mut self.qps, window);
        }
        self.crowded_out = room;
    }
}

/// The next datagram of a queue pair that takes from the window of its host: posted ones and
/// answers to reads take turns.
fn next_windowed(qp: &QueuePair, look: &Look) -> Option<(Which, NextDatagram)> {
    let read = || {
        let (path, qpn) = qp.next_read(look.read)?;
        Some((Which::Read(look.read), NextDatagram::part(path, qpn)))
    };
    let posted = || {
        let next = (look.refused < LOOKS_MAX).then(|| qp.next_datagram_at(look.place));
        let next = next.flatten()?;
        Some((Which::Posted(next.place), next))
    };
    if look.was_read {
        posted().or_else(read)
    } else {
        read().or_else(posted)
    }
}
