//! Ends of measurements: programs that `airdma link calibrate` and `airdma bench wireless` run on
//! the hosts. Each prints what it found as one line of JSON.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Length of the bins of counts.
pub const BIN: Duration = Duration::from_millis(20);
/// Payload of a packet of 1,500 bytes.
pub const PAYLOAD_BYTES: usize = 1472;
/// The answers of [`Traffic::UdpReceive`]: IP packets of 52 bytes, as TCP's.
const ANSWER_BYTES: usize = 24;
/// Each takes as much as the kernel lets one socket have, so that together they fill the driver's
/// queue.
const SOCKETS: usize = 40;
/// Most that is sent at once at a steady rate.
const BURST: Duration = Duration::from_millis(5);
/// Interval between two checks whether to send.
const PACE: Duration = Duration::from_micros(500);
const SILENCE: Duration = Duration::from_secs(1);
const FIRST: Duration = Duration::from_secs(10);
/// The echo is gone.
const PING_SILENCE: Duration = Duration::from_secs(2);
/// Length of TCP's reads and writes.
const CHUNK_BYTES: usize = 64 << 10;

/// One end of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Traffic {
    /// Sends UDP to a port of a host.
    UdpSend {
        /// The receiver.
        to: SocketAddr,
        /// For how long.
        time: Duration,
        /// In Mb/s of payload; none: as fast as the queue takes it, and so that it is never empty.
        mbit: Option<f64>,
    },
    /// Counts UDP until it is silent; answers every `answer_each`-th packet, none if 0.
    UdpReceive {
        /// At any address.
        port: u16,
        /// Packets for each answer.
        answer_each: u64,
    },
    /// Sends TCP.
    TcpSend {
        /// The receiver.
        to: SocketAddr,
        /// For how long, at most.
        time: Duration,
        /// Most bytes.
        bytes: u64,
        /// cubic, bbr or reno.
        congestion: String,
        /// Data that the program has to send in a second, in Mb; without it, there is always more.
        mbit: Option<f64>,
    },
    /// Counts one connection of TCP.
    TcpReceive {
        /// At any address.
        port: u16,
    },
    /// Sends back what comes, until it is silent.
    Echo {
        /// At any address.
        port: u16,
    },
    /// Asks an echo, which has to be there, again and again, until it is gone or silent.
    Ping {
        /// The echo.
        to: SocketAddr,
        /// For how long.
        time: Duration,
        /// Interval between two.
        apart: Duration,
        /// Bytes that must have left its host first, if any do.
        after_bytes: u64,
    },
}

/// Findings of an end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Payload that was sent, or arrived.
    pub bytes: u64,
    /// Packets that arrived, or answers.
    pub packets: u64,
    /// From the first to the last.
    pub seconds: f64,
    /// Packets that are missing among those that were numbered.
    pub missing: u64,
    /// Packets of those that arrived and found the receiver's socket full.
    pub overflowed: u64,
    /// Bytes in each bin since the first.
    pub bins: Vec<u64>,
    /// Round trips in ms, in order of time; those without an answer are not there.
    pub round_trips_ms: Vec<f64>,
    /// User and system time of this process.
    pub cpu_s: f64,
    /// Payload of each connection, if there may be several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub each: Vec<u64>,
}

impl Found {
    /// In Mb/s of payload, from the first to the last.
    pub fn mbit(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e6 / self.seconds.max(1e-9)
    }

    /// Rate in the best window of `bins` bins, in Mb/s.
    pub fn best_mbit(&self, bins: usize) -> f64 {
        let sums = self
            .bins
            .windows(bins)
            .map(|window| window.iter().sum::<u64>());
        let seconds = BIN.as_secs_f64() * bins as f64;
        sums.max().unwrap_or(0) as f64 * 8.0 / 1e6 / seconds
    }
}

/// Is this end, until it has nothing left to do.
pub fn run(traffic: &Traffic) -> io::Result<Found> {
    let mut found = match traffic {
        Traffic::UdpSend { to, time, mbit } => udp_send(*to, *time, *mbit)?,
        Traffic::UdpReceive { port, answer_each } => udp_receive(*port, *answer_each)?,
        Traffic::TcpSend {
            to,
            time,
            bytes,
            congestion,
            mbit,
        } => tcp_send(*to, *time, *bytes, congestion, *mbit)?,
        Traffic::TcpReceive { port } => tcp_receive(*port)?,
        Traffic::Echo { port } => echo(*port)?,
        Traffic::Ping {
            to,
            time,
            apart,
            after_bytes,
        } => {
            wait_for_others(*after_bytes)?;
            ping(*to, *time, *apart)?
        }
    };
    found.cpu_s = cpu_s();
    Ok(found)
}

/// User and system time of this process until now.
pub fn cpu_s() -> f64 {
    crate::controller::cpu_time().as_secs_f64()
}

/// Bytes by time.
#[derive(Debug)]
pub struct Bins {
    began: Option<Instant>,
    last: Instant,
    found: Found,
}

impl Default for Bins {
    fn default() -> Bins {
        Bins {
            began: None,
            last: Instant::now(),
            found: Found::default(),
        }
    }
}

impl Bins {
    /// Counts bytes that arrive now.
    pub fn count(&mut self, bytes: usize) {
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        let index = ((now - began).as_nanos() / BIN.as_nanos()) as usize;
        if self.found.bins.len() <= index {
            self.found.bins.resize(index + 1, 0);
        }
        self.found.bins[index] += bytes as u64;
        self.found.bytes += bytes as u64;
        self.found.packets += 1;
        self.last = now;
    }

    /// Returns the arrivals, from the first to the last.
    pub fn found(mut self) -> Found {
        let seconds = self.began.map(|began| self.last - began);
        self.found.seconds = seconds.unwrap_or_default().as_secs_f64();
        self.found
    }
}

fn udp_send(to: SocketAddr, time: Duration, mbit: Option<f64>) -> io::Result<Found> {
    let mut sockets = Vec::new();
    for _ in 0..if mbit.is_some() { 1 } else { SOCKETS } {
        let socket = UdpSocket::bind(any(to, 0))?;
        socket.connect(to)?;
        socket.set_nonblocking(mbit.is_none())?;
        // As much as the kernel lets anybody have, and no more: it is the queue that shall be full.
        set_buffer(&socket, libc::SO_SNDBUF)?;
        sockets.push(socket);
    }
    let mut payload = [0; PAYLOAD_BYTES];
    let mut found = Found::default();
    let began = Instant::now();
    let mut forgiven = 0.0;
    let mut send = |socket: &UdpSocket, found: &mut Found| {
        payload[..8].copy_from_slice(&found.packets.to_be_bytes());
        match socket.send(&payload) {
            Ok(bytes) => {
                found.bytes += bytes as u64;
                found.packets += 1;
                Ok(true)
            }
            // There is no listener yet, or no longer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    };
    while began.elapsed() < time {
        match mbit {
            Some(mbit) => {
                // What was not sent in time, because the scheduler forgot us, is not sent in a
                // burst that fills the queue.
                let due = mbit * 1e6 / 8.0 * began.elapsed().as_secs_f64() - forgiven;
                let behind = due - found.bytes as f64;
                let late = behind - mbit * 1e6 / 8.0 * BURST.as_secs_f64();
                forgiven += late.max(0.0);
                while (found.bytes as f64) < due - late.max(0.0) {
                    send(&sockets[0], &mut found)?;
                }
                std::thread::sleep(PACE);
            }
            None => {
                let mut any = false;
                for socket in &sockets {
                    any |= send(socket, &mut found)?;
                }
                if !any {
                    wait_writable(&sockets);
                }
            }
        }
    }
    found.seconds = began.elapsed().as_secs_f64();
    Ok(found)
}

fn wait_writable(sockets: &[UdpSocket]) {
    let mut waits: Vec<libc::pollfd> = sockets
        .iter()
        .map(|socket| libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLOUT,
            revents: 0,
        })
        .collect();
    // SAFETY: as many descriptors as the length says, all open. Whatever it says, the caller tries
    // again.
    unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, 100) };
}

fn udp_receive(port: u16, answer_each: u64) -> io::Result<Found> {
    let socket = UdpSocket::bind(("::", port)).or_else(|_| UdpSocket::bind(("0.0.0.0", port)))?;
    // A receiver that the scheduler forgets for 10 ms would lose what the radio did not; the host
    // of a link lets us.
    if set_buffer(&socket, libc::SO_RCVBUFFORCE).is_err() {
        set_buffer(&socket, libc::SO_RCVBUF)?;
    }
    socket.set_read_timeout(Some(FIRST))?;
    ready()?;
    let mut bins = Bins::default();
    let mut highest = 0;
    let mut bytes = [0; 2048];
    while let Some((length, from)) = received(socket.recv_from(&mut bytes))? {
        if bins.began.is_none() {
            socket.set_read_timeout(Some(SILENCE))?;
        }
        bins.count(length);
        let number = bytes[..8].try_into().map_or(0, u64::from_be_bytes);
        highest = highest.max(number);
        if answer_each > 0 && bins.found.packets.is_multiple_of(answer_each) {
            // A queue that is full drops it, as it would TCP's.
            let _ = socket.send_to(&[0; ANSWER_BYTES], from);
        }
    }
    let mut found = bins.found();
    found.missing = (highest + 1).saturating_sub(found.packets);
    found.overflowed = overflowed(&socket)?;
    Ok(found)
}

/// Number of datagrams that were dropped at a full socket.
fn overflowed(socket: &UdpSocket) -> io::Result<u64> {
    /// Number of values up to SK_MEMINFO_DROPS, which is the last.
    const DROPS: usize = 8;
    let mut numbers = [0u32; DROPS + 1];
    let mut length = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the socket is open; the numbers and their length live through the call.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(numbers[DROPS].into())
}

fn tcp_send(
    to: SocketAddr,
    time: Duration,
    bytes: u64,
    congestion: &str,
    mbit: Option<f64>,
) -> io::Result<Found> {
    let mut stream = TcpStream::connect_timeout(&to, FIRST)?;
    // SAFETY: the value lives through the call, with its length.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            congestion.as_ptr().cast(),
            congestion.len() as libc::socklen_t,
        )
    };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes_per_s = mbit.map(|mbit| mbit * 1e6 / 8.0);
    let burst = bytes_per_s.map_or(CHUNK_BYTES, |rate| (rate * BURST.as_secs_f64()) as usize);
    let chunk = vec![0; burst.clamp(1, CHUNK_BYTES)];
    let began = Instant::now();
    let mut found = Found::default();
    while began.elapsed() < time && found.bytes < bytes {
        if let Some(rate) = bytes_per_s
            && began.elapsed().as_secs_f64() * rate < found.bytes as f64
        {
            std::thread::sleep(PACE);
            continue;
        }
        let left = (bytes - found.bytes).min(chunk.len() as u64) as usize;
        found.bytes += stream.write(&chunk[..left])? as u64;
    }
    drop(stream);
    found.seconds = began.elapsed().as_secs_f64();
    Ok(found)
}

fn tcp_receive(port: u16) -> io::Result<Found> {
    let listener =
        TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    ready()?;
    let (mut stream, _) = listener.accept()?;
    let mut bins = Bins::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) => bins.count(length),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bins.found())
}

fn echo(port: u16) -> io::Result<Found> {
    let socket = UdpSocket::bind(("::", port)).or_else(|_| UdpSocket::bind(("0.0.0.0", port)))?;
    socket.set_read_timeout(Some(FIRST))?;
    ready()?;
    let mut bins = Bins::default();
    let mut bytes = [0; 2048];
    while let Some((length, from)) = received(socket.recv_from(&mut bytes))? {
        bins.count(length);
        let _ = socket.send_to(&bytes[..length], from);
    }
    Ok(bins.found())
}

/// Waits until `bytes` have left this host, but no longer than an echo waits.
fn wait_for_others(bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let (began, before) = (Instant::now(), sent_by_host()?);
    while sent_by_host()?.saturating_sub(before) < bytes && began.elapsed() < FIRST / 2 {
        thread::sleep(BIN / 10);
    }
    Ok(())
}

/// Bytes that left over all interfaces but the loopback.
fn sent_by_host() -> io::Result<u64> {
    let table = fs::read_to_string("/proc/net/dev")?;
    let rows = table.lines().filter_map(|line| line.split_once(':'));
    let others = rows.filter(|(name, _)| name.trim() != "lo");
    // Eight columns of what came stand before.
    let sent =
        others.filter_map(|(_, row)| row.split_ascii_whitespace().nth(8)?.parse::<u64>().ok());
    Ok(sent.sum())
}

fn ping(to: SocketAddr, time: Duration, apart: Duration) -> io::Result<Found> {
    let socket = UdpSocket::bind(any(to, 0))?;
    socket.connect(to)?;
    let began = Instant::now();
    let mut found = Found::default();
    let mut sent = Vec::new();
    let mut bytes = [0; 64];
    let mut answered = began;
    while began.elapsed() < time + SILENCE && answered.elapsed() < PING_SILENCE {
        let now = Instant::now();
        if now - began < time && began + apart * sent.len() as u32 <= now {
            let number = (sent.len() as u64).to_be_bytes();
            // An error is one of an earlier datagram: that the echo is gone is seen by the next.
            let _ = socket.send(&number);
            sent.push(now);
        }
        socket.set_read_timeout(Some(apart.min(Duration::from_millis(5))))?;
        match socket.recv(&mut bytes) {
            Ok(8) => {
                let number = bytes[..8].try_into().map_or(0, u64::from_be_bytes);
                if let Some(sent) = sent.get(number as usize) {
                    found
                        .round_trips_ms
                        .push(sent.elapsed().as_secs_f64() * 1e3);
                    found.packets += 1;
                    answered = Instant::now();
                }
            }
            // The echo was there before us: it has ended, and so do we.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => break,
            Ok(_) | Err(_) => {}
        }
    }
    found.missing = sent.len() as u64 - found.packets;
    found.seconds = began.elapsed().as_secs_f64();
    Ok(found)
}

/// A received datagram; none after a silence.
fn received(result: io::Result<(usize, SocketAddr)>) -> io::Result<Option<(usize, SocketAddr)>> {
    match result {
        Ok(received) => Ok(Some(received)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Notifies the parent process that it may start the other end.
///
/// # Errors
/// If it does not listen.
pub fn ready() -> io::Result<()> {
    writeln!(io::stdout(), "ready")?;
    io::stdout().flush()
}

fn any(like: SocketAddr, port: u16) -> (IpAddr, u16) {
    let any: IpAddr = match like {
        SocketAddr::V4(_) => [0, 0, 0, 0].into(),
        SocketAddr::V6(_) => [0u16; 8].into(),
    };
    (any, port)
}

fn set_buffer(socket: &UdpSocket, which: libc::c_int) -> io::Result<()> {
    let bytes: libc::c_int = 8 << 20;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw const bytes).cast();
    // SAFETY: the value lives through the call, with its length.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, which, value, length) };
    if set != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_window_is_found() {
        let found = Found {
            bytes: 40,
            seconds: 1.0,
            bins: vec![0, 10, 20, 10, 0],
            ..Found::default()
        };
        assert!((found.best_mbit(2) - 30.0 * 8.0 / 1e6 / 0.04).abs() < 1e-9);
        assert!((found.mbit() - 320.0 / 1e6).abs() < 1e-9);
        assert!(found.best_mbit(6) < 1e-9);
    }

    #[test]
    fn a_program_that_has_so_much_to_send_sends_no_more() {
        let port = 45_912;
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| run(&Traffic::TcpReceive { port }).unwrap());
            std::thread::sleep(Duration::from_millis(200));
            let sent = run(&Traffic::TcpSend {
                to: ([127, 0, 0, 1], port).into(),
                time: Duration::from_millis(500),
                bytes: u64::MAX,
                congestion: "cubic".into(),
                mbit: Some(16.0),
            });
            let (sent, came) = (sent.unwrap(), receiver.join().unwrap());
            assert_eq!(sent.bytes, came.bytes);
            assert!((500_000..=1_010_000).contains(&sent.bytes), "{sent:?}");
        });
    }

    #[test]
    fn an_echo_answers() {
        let port = 45_911;
        std::thread::scope(|scope| {
            scope.spawn(|| run(&Traffic::Echo { port }).unwrap());
            std::thread::sleep(Duration::from_millis(200));
            let found = run(&Traffic::Ping {
                to: ([127, 0, 0, 1], port).into(),
                time: Duration::from_millis(100),
                apart: Duration::from_millis(10),
                after_bytes: 0,
            });
            let found = found.unwrap();
            assert!(found.round_trips_ms.len() >= 5, "{found:?}");
        });
    }
}
