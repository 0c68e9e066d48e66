//! The hosts that Write-Records go to, and what is in flight to each.
//!
//! The window to a host is the one of all connections to it ([`super::peers`]): they fill one
//! receive socket. Datagrams are not acknowledged, so some packets ask the target for an answer
//! ([`airdma_wire::RecordEcho`]): when it comes, all that was sent before has left the path and the
//! socket, whether it arrived or not. No count of lost packets is needed, and the target keeps
//! nothing.
//!
//! | | |
//! |---|---|
//! | bytes of a packet | those of the packet, and [`PACKET_BYTES`] that a socket counts for it |
//! | a question | each [`ASK_BYTES`], and when little room is left: several are in flight, so that the loss of some does no harm |
//! | no answer | after four round trips, and [`SILENCE_MIN`] at least, all that is in flight counts as gone: so hosts that never answer get a window in that time |
//! | a window | as that of connections: halved when answers cease, or the socket is nearly full |
//! | hosts | [`RECORD_PEERS_MAX`]; each is forgotten after [`UNUSED_MAX`] without a packet |
//! | entries of targets | no more messages than the last answer allows ([`super::record_targets`]) |

use crate::index::{PeerIndex, QpIndex};
use crate::tables::peers::Peers;
use crate::tables::record_targets::{Asker, Targets};
use airdma_transport::Time;
use airdma_wire::{Neighbour, Psn, Qpn, RecordEcho};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Most hosts whose windows are known at once. With more, a packet to another one makes an earlier
/// host forgotten.
const RECORD_PEERS_MAX: usize = 1024;
/// Bytes that a socket counts for each packet beyond its own.
const PACKET_BYTES: u32 = 768;
/// Bytes after which a packet asks for an answer: four times in the smallest usual window.
const ASK_BYTES: u32 = 16 * 1024;
/// Room below which each packet asks.
const ASK_ROOM: u32 = 8 * 1024;
/// Most questions without an answer to a host; a further one takes the place of the oldest.
const QUESTIONS_MAX: usize = 64;
/// Shortest time without an answer after which all counts as gone: less than a target waits for a
/// message to go on.
const SILENCE_MIN: Duration = Duration::from_millis(10);
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Time without a packet after which a host is forgotten.
const UNUSED_MAX: Duration = Duration::from_secs(1);

/// Between which addresses packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Way {
    pub(crate) local: Neighbour,
    pub(crate) remote: Neighbour,
}

/// Place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordPeerIndex(u32);

/// A packet that asks for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// The queue pair that it is from.
    pub(crate) from: Qpn,
    /// The one that it is for.
    pub(crate) to: Qpn,
    /// The instance in the packet.
    pub(crate) instance: Psn,
    /// Message and offset.
    pub(crate) part: (u32, u32),
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    question: Question,
    at: Time,
    /// All bytes sent before it, and it.
    sent: u64,
    /// All messages to its target that began before it, and with it.
    begun: u32,
}

/// One host.
struct RecordPeer {
    way: Way,
    peer: PeerIndex,
    /// Bytes sent, and those of them that are not in flight any more.
    sent: u64,
    gone: u64,
    /// Bytes sent up to the last question.
    asked: u64,
    questions: VecDeque<Asked>,
    /// When the last answer came, or the first packet left since nothing was in flight.
    since: Time,
    used_at: Time,
    round_trip: Option<Duration>,
    /// Whether it has answered since the last silence.
    answers: bool,
    /// Its queue pairs.
    targets: Targets,
}

/// A packet that has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRecord {
    pub(crate) len: usize,
    /// The queue pair to which a message begins with it.
    pub(crate) begins: Option<Qpn>,
    pub(crate) question: Option<Question>,
}

/// A question to a target of which no packet is sent now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub(crate) way: Way,
    pub(crate) asker: Asker,
    pub(crate) question: Question,
}

/// The table.
pub(crate) struct RecordPeers {
    peers: Vec<RecordPeer>,
    by_way: HashMap<Way, u32>,
    last: u32,
    /// The next one to be forgotten for another one.
    hand: usize,
    /// When [`RecordPeers::expire`] is due.
    due: Time,
    /// Queue pairs whose messages may begin.
    released: Vec<QpIndex>,
}

impl Default for RecordPeers {
    fn default() -> Self {
        RecordPeers {
            peers: Vec::new(),
            by_way: HashMap::new(),
            last: 0,
            hand: 0,
            due: Time::NEVER,
            released: Vec::new(),
        }
    }
}

impl RecordPeers {
    /// When [`RecordPeers::expire`] is due; [`Time::NEVER`] without a host.
    #[inline]
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// How many hosts are known.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.peers.len()
    }

    /// The host at the end of a way. Returns also whose window another one leaves, if it took a
    /// place.
    pub(crate) fn find_or_add(
        &mut self,
        way: Way,
        windows: &mut Peers,
        now: Time,
    ) -> (RecordPeerIndex, Option<PeerIndex>) {
        let is_last = (self.peers.get(self.last as usize)).is_some_and(|last| last.way == way);
        if !is_last {
            match self.by_way.get(&way) {
                Some(&known) => self.last = known,
                None => return self.add(way, windows, now),
            }
        }
        (RecordPeerIndex(self.last), None)
    }

    #[cold]
    fn add(
        &mut self,
        way: Way,
        windows: &mut Peers,
        now: Time,
    ) -> (RecordPeerIndex, Option<PeerIndex>) {
        let mut left = None;
        if self.peers.len() == RECORD_PEERS_MAX {
            self.hand = (self.hand + 1) % RECORD_PEERS_MAX;
            left = Some(self.remove(self.hand, windows));
        }
        self.last = self.peers.len() as u32;
        self.by_way.insert(way, self.last);
        self.peers.push(RecordPeer {
            way,
            peer: windows.join(way.remote, None),
            sent: 0,
            gone: 0,
            asked: 0,
            questions: VecDeque::new(),
            since: now,
            used_at: now,
            round_trip: None,
            answers: false,
            targets: Targets::default(),
        });
        self.call_at(now + UNUSED_MAX);
        (RecordPeerIndex(self.last), left)
    }

    fn remove(&mut self, at: usize, windows: &mut Peers) -> PeerIndex {
        let mut peer = self.peers.swap_remove(at);
        peer.targets.release_all(&mut self.released);
        self.by_way.remove(&peer.way);
        if let Some(moved) = self.peers.get(at) {
            self.by_way.insert(moved.way, at as u32);
        }
        windows.leave_datagrams(peer.peer, peer.in_flight());
        peer.peer
    }

    fn call_at(&mut self, at: Time) {
        self.due = self.due.min(at);
    }

    /// A queue pair whose messages may begin.
    pub(crate) fn pop_released(&mut self) -> Option<QpIndex> {
        self.released.pop()
    }

    /// Whether a message to a target may begin, and if so, whether its first packet asks for an
    /// answer. The `asker` waits otherwise.
    pub(crate) fn admit_message(
        &mut self,
        index: RecordPeerIndex,
        to: Qpn,
        asker: impl FnOnce() -> Asker,
        now: Time,
    ) -> Option<bool> {
        let peer = &mut self.peers[index.0 as usize];
        let asks = peer.targets.admit(to, &mut self.released);
        if asks.is_none()
            && let Some(due) = (peer.targets).wait(to, asker(), peer.round_trip, now)
        {
            self.call_at(due);
        }
        asks
    }

    /// Whether a packet may leave, and if so, whether it asks for an answer.
    pub(crate) fn admit(&self, index: RecordPeerIndex, windows: &Peers) -> Option<bool> {
        let peer = &self.peers[index.0 as usize];
        let in_flight = peer.in_flight();
        let room = windows.credit(peer.peer, (in_flight, in_flight), false);
        (room > 0).then_some(room < ASK_ROOM || peer.sent - peer.asked >= u64::from(ASK_BYTES))
    }

    /// As [`admit_message`](Self::admit_message), where nothing waits.
    #[inline]
    pub(crate) fn admit_next(&mut self, index: RecordPeerIndex, to: Qpn) -> Option<bool> {
        let peer = &mut self.peers[index.0 as usize];
        peer.targets.admit(to, &mut self.released)
    }

    /// Whether the packets of messages to a target may be of one length.
    #[inline]
    pub(crate) fn takes_padded(&mut self, index: RecordPeerIndex, to: Qpn) -> bool {
        self.peers[index.0 as usize].targets.takes_padded(to)
    }

    /// A queue pair waits for room in the window to a host.
    pub(crate) fn wait(&self, index: RecordPeerIndex, windows: &mut Peers, queue_pair: QpIndex) {
        windows.block_once(self.peers[index.0 as usize].peer, queue_pair);
    }

    /// A packet has left, which asks for an answer or not. Returns its window.
    pub(crate) fn note_sent(
        &mut self,
        index: RecordPeerIndex,
        packet: SentRecord,
        now: Time,
        windows: &mut Peers,
    ) -> PeerIndex {
        let peer = &mut self.peers[index.0 as usize];
        let before = peer.in_flight();
        if before == 0 {
            peer.since = now;
        }
        peer.used_at = now;
        peer.sent += u64::from(packet.len as u32 + PACKET_BYTES);
        windows.update(peer.peer, before, peer.in_flight(), false, 0);
        if let Some(to) = packet.begins {
            peer.targets.begin(to);
        }
        if let Some(question) = packet.question {
            peer.asked = peer.sent;
            peer.ask(question, now);
        }
        let (window, due) = (peer.peer, peer.due());
        if before == 0 {
            self.call_at(due);
        }
        window
    }

    /// Takes an answer. Returns the window that has more room, and whether it got smaller; `None`
    /// if nothing was asked.
    pub(crate) fn take_answer(
        &mut self,
        way: Way,
        echo: &RecordEcho,
        now: Time,
        windows: &mut Peers,
    ) -> Option<(PeerIndex, bool)> {
        let known = *self.by_way.get(&way)?;
        let peer = self.peers.get_mut(known as usize)?;
        let question = Question {
            from: echo.dest_qpn,
            to: echo.src_qpn,
            instance: echo.instance,
            part: (echo.id, echo.offset),
        };
        let at = (peer.questions.iter()).position(|asked| asked.question == question)?;
        let asked = peer.questions[at];
        peer.questions.drain(..=at);
        peer.since = now;
        peer.answers = true;
        peer.take_round_trip(now.duration_since(asked.at));
        let most = echo.socket_bytes_max;
        if most > 0 {
            windows.note_socket(peer.peer, most);
        }
        let stated = (asked.begun, echo.entries);
        (peer.targets).take_answer(echo.src_qpn, stated, &mut self.released);
        let before = peer.in_flight();
        peer.gone = peer.gone.max(asked.sent);
        let is_full = most > 0 && echo.socket_bytes > most / 4 * 3;
        let after = peer.in_flight();
        windows.update(peer.peer, before, after, !is_full, PACKET_BYTES * 2);
        Some((peer.peer, is_full && windows.lost(peer.peer, now)))
    }

    /// Gives up what was not answered in time, and forgets hosts that were not used for long. Adds
    /// the windows that have more room to `windows_with_room`, and what to ask to `queries`;
    /// returns how many windows got smaller.
    #[cold]
    pub(crate) fn expire(
        &mut self,
        now: Time,
        windows: &mut Peers,
        windows_with_room: &mut Vec<PeerIndex>,
        queries: &mut Vec<Query>,
    ) -> u64 {
        let mut smaller = 0;
        for at in (0..self.peers.len()).rev() {
            let peer = &mut self.peers[at];
            while let Some((asker, to, part)) = peer.targets.expire(now, &mut self.released) {
                let question = Question {
                    from: asker.number,
                    to,
                    instance: asker.instance,
                    part,
                };
                peer.ask(question, now);
                let way = peer.way;
                queries.push(Query {
                    way,
                    asker,
                    question,
                });
            }
            if peer.silence_due() > now {
                continue;
            }
            let in_flight = peer.in_flight();
            if in_flight == 0 {
                windows_with_room.push(self.remove(at, windows));
                continue;
            }
            let was_asked = peer.questions.iter().any(|asked| asked.sent > peer.gone);
            peer.gone = peer.sent;
            windows.update(peer.peer, in_flight, 0, false, 0);
            if was_asked && std::mem::take(&mut peer.answers) {
                smaller += u64::from(windows.lost(peer.peer, now));
            }
            windows_with_room.push(peer.peer);
        }
        let due = self.peers.iter().map(RecordPeer::due).min();
        self.due = due.unwrap_or(Time::NEVER);
        smaller
    }

    /// A queue pair is gone: it waits for no window.
    pub(crate) fn forget(&mut self, queue_pair: QpIndex, windows: &mut Peers) {
        for peer in &mut self.peers {
            windows.unwait(peer.peer, queue_pair);
            peer.targets.forget(queue_pair);
        }
        self.released.retain(|&released| released != queue_pair);
    }
}

impl RecordPeer {
    fn in_flight(&self) -> u32 {
        (self.sent - self.gone) as u32
    }

    /// A question leaves. If there are too many, the oldest is forgotten.
    fn ask(&mut self, question: Question, now: Time) {
        if self.questions.len() == QUESTIONS_MAX {
            self.questions.pop_front();
        }
        self.questions.push_back(Asked {
            question,
            at: now,
            sent: self.sent,
            begun: self.targets.begun(question.to),
        });
    }

    fn due(&self) -> Time {
        let query = self.targets.due();
        query.map_or(self.silence_due(), |query| query.min(self.silence_due()))
    }

    fn silence_due(&self) -> Time {
        if self.sent == self.gone {
            return self.used_at + UNUSED_MAX;
        }
        let silence = self.round_trip.map_or(SILENCE_MIN, |time| time * 4);
        self.since + silence.clamp(SILENCE_MIN, SILENCE_MAX)
    }

    fn take_round_trip(&mut self, sample: Duration) {
        // As TCP smooths it (RFC 6298 2.3).
        let smoothed = (self.round_trip).map_or(sample, |known| known * 7 / 8 + sample / 8);
        self.round_trip = Some(smoothed);
    }
}

#[cfg(test)]
mod tests;
