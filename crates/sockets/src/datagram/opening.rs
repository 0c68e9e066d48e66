//! How lanes of datagrams are opened, beside the program's threads.
//!
//! | sender | | receiver |
//! |---|---|---|
//! | connects to the RDMA port of the receiver's UDP port | -> | listens there |
//! | `Hello`: a nonce, and a UDP port of the library | -> | |
//! | | <- | `Welcome`: the number of the lane |
//! | | <- | the proof: the nonce, from the program's own socket, by the kernel |
//!
//! The proof goes to a socket of the library: neither program sees a datagram more. That it comes
//! from the receiver's address shows that its sender has the socket, as the kernel lets no other.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use airdma::{Blame, Device, Endpoint};

use super::is_open;
use super::receiving::Receiving;
use super::sending::Sending;
use super::words::{self, Hello, Nonce, PROOF_BYTES};
use crate::address;
use crate::agent::{self, Agent};
use crate::counters::{self, Counter};
use crate::next;
use crate::policy;
use crate::process::note;
use crate::socket::{Socket, Stage, lock};

/// How long an attempt to connect may take, and an answer.
const FIRST_ANSWER: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(2);
/// Between two looks whether the socket is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Between two looks for the proof.
const PROOF_PAUSE: Duration = Duration::from_millis(1);
/// How often the proof is sent: by UDP, it may be lost.
const PROOFS: usize = 3;

/// Begins to take lanes for a socket that gets long datagrams, one from `from` among them.
pub fn listen(socket: &'static Socket, fd: c_int, from: SocketAddr) {
    let generation = socket.generation();
    let Some(own) = own_address(fd, from) else {
        return;
    };
    agent::spawn(move |agent| async move {
        let Some(device) = agent.device(own.ip()) else {
            return;
        };
        // An earlier socket of the port may hold it for a while.
        let listener = loop {
            match device.listen(own.port()) {
                Ok(listener) => break listener,
                Err(_) if is_open(socket, generation) => agent.sleep(LOOK).await,
                Err(_) => return,
            }
        };
        while is_open(socket, generation) {
            match agent.within(LOOK, listener.accept()).await {
                Some(Ok(endpoint)) => {
                    let peer = endpoint.peer();
                    let lane = accept(agent, &device, socket, generation, own, endpoint).await;
                    note(|| format!("datagrams from {peer} to {own}: a lane: {}", lane.is_some()));
                }
                Some(Err(_)) => return,
                None => {}
            }
        }
    });
}

/// The address that a peer sends to: of a socket that is bound to any, the one on the way back.
fn own_address(fd: c_int, from: SocketAddr) -> Option<SocketAddr> {
    let own = address::own(fd)?;
    let is_any = match own.ip() {
        IpAddr::V4(ip) => ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_unspecified(),
    };
    let ip = if is_any {
        address::route(from)?.own
    } else {
        own.ip()
    };
    Some(SocketAddr::new(ip, own.port()))
}

async fn accept(
    agent: &'static Agent,
    device: &Device,
    socket: &'static Socket,
    generation: u64,
    own: SocketAddr,
    endpoint: Endpoint,
) -> Option<()> {
    let peer = endpoint.peer();
    policy::allows(own, SocketAddr::new(peer, 0), false).then_some(())?;
    let number = u64::from_be_bytes(words::random()?);
    let mut lane = Receiving::new(device, endpoint, number).ok()?;
    let hello = agent.within(ANSWER, lane.hello()).await.flatten()?;
    (hello.port == own.port()).then_some(())?;
    let lane = Arc::new(Mutex::new(lane));
    // The descriptor is not closed while the lock is held.
    let inner = socket.lock();
    let may = is_open(socket, generation)
        && (socket.stage() == Stage::Lane || socket.step(Stage::Candidate, Stage::Lane));
    may.then_some(())?;
    if !lock(&socket.datagrams).receives(number, &lane) {
        return None;
    }
    lock(&lane).welcome();
    prove(
        inner.fd,
        SocketAddr::new(peer, hello.proof_port),
        &hello.nonce,
    );
    drop(inner);
    socket.catch_up();
    counters::add(device, Counter::DatagramLanes, 1);
    Some(())
}

/// Sends the proof from the program's socket.
fn prove(fd: c_int, to: SocketAddr, nonce: &Nonce) {
    let is_v6 = crate::tcp::integer(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_INET6);
    let (name, length) = address::written(to, is_v6);
    let proof = words::proof(nonce);
    for _ in 0..PROOFS {
        // SAFETY: the bytes and the name above.
        unsafe {
            next::sendto(
                fd,
                proof.as_ptr().cast(),
                proof.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                (&raw const name).cast(),
                length,
            );
        }
    }
}

/// Tries to open a lane to an address that gets long datagrams.
pub fn connect(socket: &'static Socket, to: SocketAddr) {
    let generation = socket.generation();
    agent::spawn(move |agent| async move {
        let lane = try_to(agent, to).await;
        note(|| format!("datagrams to {to}: a lane: {}", lane.is_some()));
        let mut datagrams = lock(&socket.datagrams);
        // A socket that was given back has a stage without lanes.
        let is_open = is_open(socket, generation);
        if let Some(way) = datagrams.way(to).filter(|_| is_open) {
            way.is_trying = false;
            if let Some(lane) = lane {
                lane.count(Counter::DatagramLanes);
                way.lane = Some(lane);
            }
        }
    });
}

async fn try_to(agent: &'static Agent, to: SocketAddr) -> Option<Sending> {
    let route = address::route(to)?;
    let own = SocketAddr::new(route.own, 0);
    (policy::allows(own, to, true) && !agent.leaves_alone(to.ip())).then_some(())?;
    let device = agent.device(own.ip())?;
    let proofs = UdpSocket::bind(own).ok()?;
    proofs.set_nonblocking(true).ok()?;
    let endpoint = match agent.within(FIRST_ANSWER, device.connect(to)).await? {
        Ok(endpoint) => endpoint,
        Err(error) => {
            if error.blame() != Blame::Peer {
                agent.leave_alone(to.ip());
            }
            return None;
        }
    };
    let hello = Hello {
        nonce: words::random()?,
        proof_port: proofs.local_addr().ok()?.port(),
        port: to.port(),
    };
    let mut lane = Sending::new(&device, endpoint, route.frame_bytes).ok()?;
    lane.hello(&hello);
    agent.within(ANSWER, lane.welcomed()).await?.then_some(())?;
    if !proved(agent, &proofs, to, &hello.nonce).await {
        counters::add(&device, Counter::Forged, 1);
        return None;
    }
    Some(lane)
}

/// Whether a datagram with the nonce comes from an address.
async fn proved(
    agent: &'static Agent,
    proofs: &UdpSocket,
    from: SocketAddr,
    nonce: &Nonce,
) -> bool {
    let expected = words::proof(nonce);
    let start = Instant::now();
    while start.elapsed() < ANSWER {
        let mut bytes = [0; PROOF_BYTES + 1];
        match proofs.recv_from(&mut bytes) {
            Ok((length, at)) if at == from && bytes[..length] == expected => return true,
            Ok(_) | Err(_) => agent.sleep(PROOF_PAUSE).await,
        }
    }
    false
}
