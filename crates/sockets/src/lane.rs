//! A lane: the RDMA connection that carries the stream of a TCP connection from an agreed byte on.
//!
//! Each end has sixteen messages of 32 KiB posted for the peer's data, and the peer has a credit
//! for each: a message is posted again once the program has read it. Small writes that find no
//! credit share a message. Memory of a lane: 1.2 MiB of addresses, of which pages exist that were
//! used.
//!
//! All of it happens under the lock of the socket, by threads that are [inside](crate::inside).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use airdma::{Device, Endpoint, Message, Operation, Region, Result};

use crate::message::{HEADER_BYTES, Header, Kind, MESSAGE_BYTES};
use crate::tcp;

/// Messages of data that the peer may have sent and its peer's program has not read.
const CREDITS: usize = 16;
/// Receives for messages without credits.
const SPARE: usize = 4;
/// Messages that are filled or wait for a credit, beside those that are sent.
const WAITING: usize = 2;
/// Most tokens in the kernel's receive queue.
const TOKENS_MAX: u64 = 1024;
/// Most bytes that are written before the lane is open: in the kernel's queue of a writable socket
/// there is room for them, should the connection stay there.
const UNOPENED_MAX: usize = 4096;
/// Length of messages without payload.
const CONTROL_BYTES: usize = 128;

/// A lane. See the module.
pub struct Lane {
    endpoint: Endpoint,
    waker: Waker,
    sending: Sending,
    receiving: Receiving,
    /// What the peer has said of the negotiation, whichever thread took the message.
    pub heard: Heard,
    /// The peer or the path is gone.
    pub failed: bool,
    /// The program was told so by a read.
    pub failure_told: bool,
}

struct Sending {
    /// Whether the peer knows from which byte on this end writes to the lane.
    is_open: bool,
    /// Whether the program has shut this direction.
    is_shut: bool,
    credits: usize,
    free: Vec<Region>,
    filling: Option<(Region, usize)>,
    waiting: VecDeque<(Region, usize)>,
    sent: VecDeque<Sent>,
    /// How many of the first of `sent` the peer's program has read.
    consumed: usize,
    control: VecDeque<Operation<Region>>,
    control_free: Vec<Region>,
    /// Bytes that went by the lane.
    bytes: u64,
    tokens: u32,
    /// Whether the peer knows where the program's bytes end in the kernel's stream.
    may_send_tokens: bool,
    /// Whether the program has asked for full messages only (`TCP_CORK`).
    is_corked: bool,
    gate_shut: bool,
}

struct Sent {
    operation: Option<Operation<Region>>,
    region: Option<Region>,
    length: usize,
}

struct Receiving {
    posted: VecDeque<Operation<Message>>,
    /// Payload that the program has not read, and how much of the first message it has.
    arrived: VecDeque<Message>,
    read_of_first: usize,
    /// Bytes that the program still reads from the kernel; `None` while the peer writes there.
    from_kernel: Option<u64>,
    /// Credits to return.
    owed: u16,
    /// Bytes that came by the lane.
    bytes: u64,
    /// Length of the peer's stream on the lane, once it is shut.
    fin: Option<u64>,
    tokens_sent: u32,
    tokens_taken: u64,
    gate_open: bool,
    /// Whether the program has shut this direction.
    is_shut: bool,
}

/// Where the next bytes for the program come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The kernel, at most that many.
    Kernel(usize),
    /// The lane.
    Lane,
}

impl Lane {
    /// A lane on an open endpoint, with its receives posted. `waker` is called at each event.
    pub fn new(device: &Device, endpoint: Endpoint, waker: Waker) -> Result<Lane> {
        let cut = |mut whole: Region, bytes: usize| {
            let mut parts = Vec::new();
            while whole.len() > bytes {
                let (part, rest) = whole.split_at(bytes)?;
                parts.push(part);
                whole = rest;
            }
            parts.push(whole);
            Ok::<_, airdma::Error>(parts)
        };
        let receives = device.allocate_private((CREDITS + SPARE) * MESSAGE_BYTES)?;
        let posted = cut(receives, MESSAGE_BYTES)?;
        let sends = device.allocate_private((CREDITS + WAITING) * MESSAGE_BYTES)?;
        let control = device.allocate_private(4096)?;
        Ok(Lane {
            sending: Sending {
                is_open: false,
                is_shut: false,
                credits: CREDITS,
                free: cut(sends, MESSAGE_BYTES)?,
                filling: None,
                waiting: VecDeque::new(),
                sent: VecDeque::new(),
                consumed: 0,
                control: VecDeque::new(),
                control_free: cut(control, CONTROL_BYTES)?,
                bytes: 0,
                tokens: 0,
                may_send_tokens: false,
                is_corked: false,
                gate_shut: false,
            },
            receiving: Receiving {
                posted: posted
                    .into_iter()
                    .map(|region| endpoint.recv(region, ..))
                    .collect(),
                arrived: VecDeque::new(),
                read_of_first: 0,
                from_kernel: None,
                owed: 0,
                bytes: 0,
                fin: None,
                tokens_sent: 0,
                tokens_taken: 0,
                // As a descriptor without a lane: readable with the first byte.
                gate_open: true,
                is_shut: false,
            },
            endpoint,
            waker,
            heard: Heard::default(),
            failed: false,
            failure_told: false,
        })
    }

    /// Sends a message without credits.
    pub fn tell(&mut self, kind: Kind, value: u64, payload: &[u8]) {
        let sending = &mut self.sending;
        while let Some(operation) = sending.control.front_mut() {
            match poll(operation, &self.waker) {
                Poll::Ready(Ok(region)) => sending.control_free.push(region),
                Poll::Ready(Err(_)) => self.failed = true,
                Poll::Pending => break,
            }
            sending.control.pop_front();
        }
        let Some(mut region) = sending.control_free.pop() else {
            // The peer acknowledges none of 32 messages.
            self.failed = true;
            return;
        };
        let header = Header {
            kind,
            credits: std::mem::take(&mut self.receiving.owed),
            tokens: sending.tokens,
            value,
        };
        header.write(&mut region);
        let end = HEADER_BYTES + payload.len();
        region[HEADER_BYTES..end].copy_from_slice(payload);
        sending.control.push_back(self.endpoint.send(region, ..end));
    }

    /// The next message while the lane is negotiated: header and payload.
    pub async fn negotiated(&mut self) -> Option<(Header, Vec<u8>)> {
        let message = self.receiving.posted.front_mut()?.await.ok()?;
        self.receiving.posted.pop_front();
        let header = Header::read(&message)?;
        let payload = message.get(HEADER_BYTES..)?.to_vec();
        self.post(message);
        Some((header, payload))
    }

    fn post(&mut self, message: Message) {
        let receive = self.endpoint.recv(message.into_region(), ..);
        self.receiving.posted.push_back(receive);
    }

    /// The peer knows from which byte on this end writes to the lane.
    pub fn open(&mut self) {
        self.sending.is_open = true;
        self.pump();
    }

    /// Puts the token into the kernel connection that the read gate of the peer stands on.
    pub fn send_token(&mut self, fd: i32) {
        self.sending.may_send_tokens = true;
        if tcp::send_token(fd, 0) {
            self.sending.tokens += 1;
        } else {
            self.failed = true;
        }
    }

    /// The peer writes to the lane once the program has read `left` bytes more from the kernel.
    pub fn peer_switches(&mut self, left: u64) {
        self.receiving.from_kernel = Some(left);
    }

    /// Handles what has happened, and sets the gates of the kernel's descriptor by it.
    pub fn progress(&mut self, fd: i32) {
        let before = (self.heard, self.failed);
        let mut arrived = false;
        while !self.failed
            && let Some(first) = self.receiving.posted.front_mut()
        {
            match poll(first, &self.waker) {
                Poll::Pending => break,
                Poll::Ready(Ok(message)) => {
                    self.receiving.posted.pop_front();
                    arrived |= self.take(message);
                }
                Poll::Ready(Err(_)) => self.failed = true,
            }
        }
        self.reclaim();
        self.pump();
        self.drain_tokens(fd);
        if (arrived || self.failed) && self.source_is_lane() {
            self.receiving.gate_open = true;
            tcp::open_read_gate(fd);
        }
        if self.sending.gate_shut && (self.has_room() || self.failed) {
            self.sending.gate_shut = false;
            tcp::open_write_gate(fd);
        }
        if before != (self.heard, self.failed) {
            // For the task that negotiates.
            self.waker.wake_by_ref();
        }
    }

    /// Whether the program reads from the lane next.
    fn source_is_lane(&self) -> bool {
        self.receiving.from_kernel == Some(0)
    }

    /// Handles a message. Whether the program can read something of it.
    fn take(&mut self, message: Message) -> bool {
        let Some(header) = Header::read(&message) else {
            self.failed = true;
            return false;
        };
        self.sending.credits += usize::from(header.credits);
        self.sending.consumed += usize::from(header.credits);
        if self.sending.credits > CREDITS {
            self.failed = true;
            return false;
        }
        self.receiving.tokens_sent = self.receiving.tokens_sent.max(header.tokens);
        match header.kind {
            Kind::Data if message.len() > HEADER_BYTES => {
                if self.receiving.arrived.len() == CREDITS || self.receiving.fin.is_some() {
                    self.failed = true;
                    return false;
                }
                self.receiving.bytes += (message.len() - HEADER_BYTES) as u64;
                self.receiving.arrived.push_back(message);
                return true;
            }
            Kind::Ready => self.heard.ready = Some(header.value),
            Kind::Go => self.heard.go = true,
            Kind::Fin => self.receiving.fin = Some(header.value),
            Kind::Credits => {}
            Kind::Data | Kind::Hello | Kind::Confirm => self.failed = true,
        }
        self.post(message);
        header.kind == Kind::Fin
    }

    /// Takes back memory that the peer's program has read.
    fn reclaim(&mut self) {
        let sending = &mut self.sending;
        for sent in &mut sending.sent {
            let Some(operation) = &mut sent.operation else {
                continue;
            };
            match poll(operation, &self.waker) {
                Poll::Pending => break,
                Poll::Ready(Ok(region)) => sent.region = Some(region),
                Poll::Ready(Err(_)) => self.failed = true,
            }
            sent.operation = None;
        }
        while sending.consumed > 0
            && let Some(first) = sending.sent.front_mut()
            && let Some(region) = first.region.take()
        {
            sending.free.push(region);
            sending.sent.pop_front();
            sending.consumed -= 1;
        }
    }

    /// Sends what has a credit.
    fn pump(&mut self) {
        while self.sending.is_open && self.sending.credits > 0 && !self.failed {
            let sending = &mut self.sending;
            let next = sending
                .waiting
                .pop_front()
                .or_else(|| sending.filling.take());
            let Some((mut region, length)) = next else {
                return;
            };
            let header = Header {
                kind: Kind::Data,
                credits: std::mem::take(&mut self.receiving.owed),
                tokens: sending.tokens,
                value: 0,
            };
            header.write(&mut region);
            let operation = self.endpoint.send(region, ..HEADER_BYTES + length);
            sending.credits -= 1;
            sending.sent.push_back(Sent {
                operation: Some(operation),
                region: None,
                length,
            });
        }
    }

    /// Keeps messages back until they are full, or no longer.
    pub fn cork(&mut self, is_corked: bool) {
        self.sending.is_corked = is_corked;
        if !is_corked {
            self.pump();
        }
    }

    fn has_room(&self) -> bool {
        let sending = &self.sending;
        let fits = |(_, length): &(Region, usize)| HEADER_BYTES + length < MESSAGE_BYTES;
        !sending.free.is_empty() || sending.filling.as_ref().is_some_and(fits)
    }

    /// Copies bytes of the program into messages; how many. `more`: the last message waits for
    /// further bytes. With less than all, the write gate is shut.
    pub fn write(&mut self, fd: i32, mut bytes: &[u8], more: bool) -> usize {
        let all = bytes.len();
        if !self.sending.is_open {
            let room = UNOPENED_MAX.saturating_sub(self.sending.bytes as usize);
            if !tcp::is_writable(fd) {
                return 0;
            }
            bytes = &bytes[..bytes.len().min(room)];
        }
        let taken = bytes.len();
        if self.sending.free.is_empty() {
            self.progress(fd);
        }
        while !bytes.is_empty() && !self.failed {
            let sending = &mut self.sending;
            let filling = sending.filling.take();
            let Some((mut region, length)) = filling.or_else(|| Some((sending.free.pop()?, 0)))
            else {
                break;
            };
            let start = HEADER_BYTES + length;
            let count = bytes.len().min(MESSAGE_BYTES - start);
            let (now, later) = bytes.split_at(count);
            region[start..start + count].copy_from_slice(now);
            bytes = later;
            let filled = (region, length + count);
            if start + count < MESSAGE_BYTES {
                sending.filling = Some(filled);
                break;
            }
            sending.waiting.push_back(filled);
            self.pump();
        }
        if !more && !self.sending.is_corked {
            self.pump();
        }
        let written = taken - bytes.len();
        self.sending.bytes += written as u64;
        if written < all {
            self.shut_write_gate(fd);
        }
        written
    }

    /// What was written before the lane was opened, for the kernel in its place.
    pub fn unopened(&self) -> &[u8] {
        match &self.sending.filling {
            Some((region, length)) if !self.sending.is_open => {
                &region[HEADER_BYTES..HEADER_BYTES + length]
            }
            _ => &[],
        }
    }

    fn shut_write_gate(&mut self, fd: i32) {
        if self.failed || !self.sending.may_send_tokens {
            return;
        }
        if tcp::shut_write_gate(fd) {
            self.sending.tokens += 1;
        }
        self.sending.gate_shut = true;
        // Room may have come meanwhile.
        self.progress(fd);
    }

    /// Where the program's next bytes come from.
    pub fn source(&self) -> Source {
        match self.receiving.from_kernel {
            None => Source::Kernel(usize::MAX),
            Some(0) => Source::Lane,
            Some(left) => Source::Kernel(usize::try_from(left).unwrap_or(usize::MAX)),
        }
    }

    /// The program has read that many bytes from the kernel.
    pub fn read_from_kernel(&mut self, fd: i32, bytes: usize) {
        if let Some(left) = &mut self.receiving.from_kernel {
            *left = left.saturating_sub(bytes as u64);
            if *left == 0 {
                self.settle_read_gate(fd);
            }
        }
    }

    /// Shuts the read gate if there is nothing to read.
    pub fn settle_read_gate(&mut self, fd: i32) {
        if !self.source_is_lane() {
            return;
        }
        if self.has_something() {
            if !self.receiving.gate_open {
                self.receiving.gate_open = true;
                tcp::open_read_gate(fd);
            }
        } else {
            self.receiving.gate_open = false;
            tcp::shut_read_gate(fd);
            self.progress(fd);
        }
    }

    fn has_something(&self) -> bool {
        !self.receiving.arrived.is_empty() || self.receiving.fin.is_some() || self.failed
    }

    /// Whether the peer has shut its direction, and the program has read all of it.
    pub fn is_at_end(&self) -> bool {
        let receiving = &self.receiving;
        let all = receiving.is_shut || receiving.fin == Some(receiving.bytes);
        receiving.arrived.is_empty() && all
    }

    /// The program reads no more: an empty lane is at its end.
    pub fn shut_reading(&mut self) {
        self.receiving.is_shut = true;
    }

    /// Bytes that the program can read from the lane.
    pub fn readable(&self) -> usize {
        let payload = |message: &Message| message.len() - HEADER_BYTES;
        let all: usize = self.receiving.arrived.iter().map(payload).sum();
        all - self.receiving.read_of_first
    }

    /// Bytes that the program can read, of `in_kernel` that the kernel has.
    pub fn all_readable(&self, in_kernel: u64) -> i32 {
        let from_kernel = match self.receiving.from_kernel {
            None => in_kernel,
            Some(left) => in_kernel.min(left),
        };
        let all = from_kernel + self.readable() as u64;
        i32::try_from(all).unwrap_or(i32::MAX)
    }

    /// Bytes that the peer has not acknowledged.
    pub fn unsent(&mut self) -> i32 {
        self.reclaim();
        let sending = &self.sending;
        let filling = sending.filling.as_ref().map_or(0, |(_, length)| *length);
        let waiting: usize = sending.waiting.iter().map(|(_, length)| length).sum();
        let on_way = sending.sent.iter().filter(|sent| sent.operation.is_some());
        let on_way: usize = on_way.map(|sent| sent.length).sum();
        i32::try_from(filling + waiting + on_way).unwrap_or(i32::MAX)
    }

    /// Copies received bytes out, into one buffer after the other; how many. With `peek` they stay.
    pub fn read(&mut self, fd: i32, buffers: &mut [&mut [u8]], peek: bool) -> usize {
        if self.receiving.arrived.is_empty() {
            self.progress(fd);
        }
        let mut copied = 0;
        let (mut at, mut message) = (self.receiving.read_of_first, 0);
        'buffers: for buffer in buffers {
            let mut room = &mut buffer[..];
            while !room.is_empty() {
                let Some(first) = self.receiving.arrived.get(message) else {
                    break 'buffers;
                };
                let payload = &first[HEADER_BYTES + at..];
                let count = payload.len().min(room.len());
                let (now, later) = room.split_at_mut(count);
                now.copy_from_slice(&payload[..count]);
                room = later;
                copied += count;
                at += count;
                if count == payload.len() {
                    at = 0;
                    if peek {
                        message += 1;
                    } else if let Some(read) = self.receiving.arrived.pop_front() {
                        self.receiving.owed += 1;
                        self.post(read);
                    }
                }
            }
        }
        if !peek {
            self.receiving.read_of_first = at;
            if usize::from(self.receiving.owed) >= CREDITS / 2 {
                self.tell(Kind::Credits, 0, &[]);
            }
            if copied > 0 {
                self.settle_read_gate(fd);
            }
        }
        copied
    }

    /// Leaves few tokens in the kernel's receive queue.
    fn drain_tokens(&mut self, fd: i32) {
        if !self.source_is_lane() {
            return;
        }
        let receiving = &mut self.receiving;
        let there = u64::from(receiving.tokens_sent).saturating_sub(receiving.tokens_taken);
        if there > TOKENS_MAX {
            // The last one may be on its way, and the gate stands on one that is here.
            let here = tcp::count(fd, libc::FIONREAD).unwrap_or(0);
            let most = here.min(there).saturating_sub(1);
            receiving.tokens_taken += tcp::take_tokens(fd, most);
        }
    }

    /// Takes all tokens, so that the kernel closes the connection with FIN.
    pub fn take_all_tokens(&mut self, fd: i32) {
        if self.source_is_lane() {
            // Not one read more, which would take the error of the connection.
            let here = tcp::count(fd, libc::FIONREAD).unwrap_or(0);
            self.receiving.tokens_taken += tcp::take_tokens(fd, here);
        }
    }

    /// Whether the program has left bytes unread that are here.
    pub fn leaves_bytes(&self, fd: i32) -> bool {
        let from_kernel = !self.source_is_lane() && tcp::count(fd, libc::FIONREAD) != Some(0);
        from_kernel || !self.receiving.arrived.is_empty()
    }

    /// Whether the program has left something unread.
    pub fn has_unread(&self) -> bool {
        !self.source_is_lane() || !self.receiving.arrived.is_empty()
    }

    /// Shuts this direction behind what was written.
    pub fn shut(&mut self) {
        if !self.sending.is_shut {
            self.sending.is_shut = true;
            self.pump();
        }
    }

    /// Whether the program has shut this direction.
    pub fn is_shut(&self) -> bool {
        self.sending.is_shut
    }

    /// Whether all that was written is at the peer. Tells the peer of the end as soon as it is.
    pub fn is_delivered(&mut self, fd: i32, told: &mut bool) -> bool {
        self.progress(fd);
        if self.failed {
            return true;
        }
        let sending = &mut self.sending;
        if sending.filling.is_some() || !sending.waiting.is_empty() {
            return false;
        }
        if !*told {
            *told = true;
            let bytes = sending.bytes;
            self.tell(Kind::Fin, bytes, &[]);
        }
        let sending = &mut self.sending;
        while let Some(operation) = sending.control.front_mut() {
            match poll(operation, &self.waker) {
                Poll::Ready(Ok(region)) => sending.control_free.push(region),
                Poll::Ready(Err(_)) => self.failed = true,
                Poll::Pending => return false,
            }
            sending.control.pop_front();
        }
        sending.sent.iter().all(|sent| sent.operation.is_none())
    }

    /// Bytes that went and came by the lane.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sending.bytes, self.receiving.bytes)
    }
}

/// What the peer has said of the negotiation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The peer writes to the lane from that byte of the stream on.
    pub ready: Option<u64>,
    /// The peer knows from which byte on this end does.
    pub go: bool,
}

fn poll<T>(operation: &mut Operation<T>, waker: &Waker) -> Poll<Result<T>> {
    Pin::new(operation).poll(&mut Context::from_waker(waker))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use super::*;

    /// Both lanes of a connection, and its sockets: first those of the end that connected.
    struct Ends {
        lanes: [Lane; 2],
        sockets: [TcpStream; 2],
    }

    impl Ends {
        fn new(port: u16) -> Ends {
            let device = Device::open("127.0.0.1").unwrap();
            let listener = device.listen(port).unwrap();
            let mut connecting = device.connect(("127.0.0.1", port));
            let accepted = listener.accept().wait().unwrap();
            let connected = connecting.wait_timeout(Duration::from_secs(10)).unwrap();
            let lane = |endpoint| Lane::new(&device, endpoint, Waker::noop().clone()).unwrap();
            let lanes = [lane(connected.unwrap()), lane(accepted)];
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (passive, _) = listener.accept().unwrap();
            Ends {
                lanes,
                sockets: [active, passive],
            }
        }

        fn fd(&self, end: usize) -> i32 {
            self.sockets[end].as_raw_fd()
        }

        fn progress_until(&mut self, end: usize, happened: impl Fn(&Lane) -> bool) {
            let (fd, started) = (self.fd(end), Instant::now());
            while !happened(&self.lanes[end]) {
                self.lanes[end].progress(fd);
                assert!(started.elapsed() < Duration::from_secs(10));
            }
        }

        fn read_until(&mut self, end: usize, happened: impl Fn(&Heard) -> bool) {
            let (fd, started) = (self.fd(end), Instant::now());
            while !happened(&self.lanes[end].heard) {
                assert_eq!(self.lanes[end].read(fd, &mut [&mut [0; 8]], false), 0);
                assert!(started.elapsed() < Duration::from_secs(10));
            }
        }
    }

    #[test]
    fn a_message_of_the_negotiation_is_kept_whichever_call_takes_it() {
        let mut ends = Ends::new(7591);
        // Reads of the program take them one by one, before the task that negotiates looks.
        ends.lanes[0].tell(Kind::Ready, 7, &[]);
        ends.read_until(1, |heard| heard.ready.is_some());
        ends.lanes[0].tell(Kind::Go, 0, &[]);
        ends.read_until(1, |heard| heard.go);
        let heard = ends.lanes[1].heard;
        assert_eq!((heard.ready, heard.go), (Some(7), true));
    }

    #[test]
    fn what_is_written_before_a_lane_is_open_fits_the_kernel() {
        let mut ends = Ends::new(7592);
        let fd = ends.fd(0);
        assert_eq!(ends.lanes[0].write(fd, b"first", false), 5);
        let more = vec![b'x'; 2 * UNOPENED_MAX];
        assert_eq!(ends.lanes[0].write(fd, &more, false), UNOPENED_MAX - 5);
        assert_eq!(ends.lanes[0].write(fd, b"none", false), 0);
        let unopened = ends.lanes[0].unopened();
        assert_eq!(
            (unopened.len(), &unopened[..6]),
            (UNOPENED_MAX, &b"firstx"[..])
        );
        // The lane opens: it leaves by the lane, and the kernel gets nothing of it.
        ends.lanes[0].open();
        assert!(ends.lanes[0].unopened().is_empty());
        ends.lanes[1].peer_switches(0);
        ends.progress_until(1, |lane| lane.readable() == UNOPENED_MAX);
        assert_eq!(tcp::count(ends.fd(1), libc::FIONREAD), Some(0));
    }

    #[test]
    fn a_peer_that_sends_beyond_its_credits_ends_the_lane() {
        let mut ends = Ends::new(7593);
        ends.lanes[0].open();
        ends.lanes[1].peer_switches(0);
        ends.lanes[0].sending.credits = CREDITS + 1;
        let message = vec![b'x'; MESSAGE_BYTES - HEADER_BYTES];
        let fd = ends.fd(0);
        for _ in 0..=CREDITS {
            assert_eq!(ends.lanes[0].write(fd, &message, false), message.len());
        }
        ends.progress_until(1, |lane| lane.failed);
        assert_eq!(ends.lanes[1].receiving.arrived.len(), CREDITS);
    }
}
