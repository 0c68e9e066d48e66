//! A client of a daemon that this test is: what the library writes and asks.
#![allow(clippy::unwrap_used)]

use super::protocol::{self, Hello, PACKET_BYTES_MAX, Welcome};
use super::socket::Socket;
use crate::common::{End, connect, isolated};
use crate::control::{Control, MemoryControl, QueueControl, QueuePairControl, Reply, encoding};
use crate::index::{CqIndex, DOORBELLS, QpIndex};
use crate::progress::eventfd::EventFd;
use crate::queues::shared_page::SharedPage;
use crate::{Device, DeviceConfig, Operation, Path, QpType, Qpn, all_devices};
use airdma_shm::{Block, Doorbells};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

const SETUP: &str = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6\n\
                     ip link add veth0 type veth peer name veth1\n\
                     ip link set veth0 up\n\
                     ip link set veth1 up\n\
                     ip address add 10.9.0.1/24 dev veth0";
/// The place that the daemon gives to the queue pair.
const PLACE: u32 = 5;

/// What the client shares with its daemon.
struct Shared {
    page: SharedPage,
    doorbells: Doorbells,
    wake_daemon: EventFd,
    _open: [Socket; 2],
}

/// Serves one client, which believes that all it asks for is done.
fn serve(listener: &Socket, shared: &Sender<Shared>) {
    let socket = listener.accept().unwrap();
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let got = socket.receive(&mut buffer, true).unwrap().unwrap();
    let hello = Hello::decode(&buffer[..got.length]).unwrap();
    let [_memory, page, doorbells]: [OwnedFd; 3] = got.descriptors.try_into().unwrap();
    let block = |fd, extent: protocol::Extent| {
        Block::map(fd, extent.offset, extent.length as usize).unwrap()
    };
    let doorbells = Arc::new(block(doorbells, hello.doorbells));
    let (wake_client, woken) = Socket::pair().unwrap();
    let (events, events_there) = Socket::pair().unwrap();
    let wake_daemon = EventFd::nonblocking().unwrap();
    let beside = [woken.as_fd(), wake_daemon.as_fd(), events_there.as_fd()];
    socket
        .send(&Welcome::Accepted(1).encode(), &beside, true)
        .unwrap();
    shared
        .send(Shared {
            page: SharedPage::attach(block(page, hello.page)).unwrap(),
            doorbells: Doorbells::attach(doorbells, DOORBELLS).unwrap(),
            wake_daemon,
            _open: [wake_client, events],
        })
        .unwrap();
    while let Ok(Some(got)) = socket.receive(&mut buffer, true) {
        let (_, message) = protocol::take_blocks(&buffer[..got.length]).unwrap();
        let reply = answer(&encoding::decode(message).unwrap());
        socket.send(&encoding::encode(&reply), &[], true).unwrap();
    }
}

fn answer(control: &Control<'_>) -> Reply {
    match control {
        Control::Queue {
            call: QueueControl::CreateCompletions { .. },
        } => Reply::CompletionQueue {
            index: CqIndex::new(0),
        },
        Control::CreateQueuePair { .. } => Reply::QueuePair {
            index: QpIndex::new(PLACE),
            number: Qpn::new(17),
        },
        Control::Memory {
            call: MemoryControl::Register { .. },
        } => Reply::Key { key: 0x100 },
        Control::QueuePair {
            call: QueuePairControl::Retire | QueuePairControl::IsFinished,
            ..
        } => Reply::Answer { yes: true },
        Control::Flush
        | Control::Memory { .. }
        | Control::Queue { .. }
        | Control::QueuePair { .. }
        | Control::Cm { .. }
        | Control::Connection { .. } => Reply::Done,
    }
}

/// Which doorbells were rung since the last call.
fn rung(shared: &Shared) -> Vec<u32> {
    let mut bits = Vec::new();
    shared.doorbells.drain(|bit| bits.push(bit));
    bits
}

/// Whether the client has woken its daemon since the last call.
fn is_woken(shared: &Shared) -> bool {
    let mut poll = libc::pollfd {
        fd: shared.wake_daemon.fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd, and a call that does not wait.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    shared.wake_daemon.clear();
    ready == 1
}

#[test]
fn each_post_rings_and_wakes_a_daemon_that_sleeps() {
    let name = "remote::tests::each_post_rings_and_wakes_a_daemon_that_sleeps";
    isolated(name, SETUP, || {
        let path: PathBuf =
            std::env::temp_dir().join(format!("airdma-fake-{}", std::process::id()));
        let listener = Socket::listen(&path, 1).unwrap();
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&listener, &sender));
            let devices = all_devices().unwrap();
            let info = devices
                .iter()
                .find(|info| info.interface == "veth0")
                .unwrap();
            let config = DeviceConfig {
                daemon: Some(path.clone()),
                ..DeviceConfig::default()
            };
            let device = Device::open_with(info, &config).unwrap();
            let end = End::new(&device, QpType::Rc, 4096);
            let shared: Shared = receiver.recv().unwrap();
            let peer = Path {
                gid: info.gids[0].gid,
                hop_limit: 64,
                ..Path::default()
            };
            connect(&end.qp, Qpn::new(18), peer);
            rung(&shared);
            for sleeps in [true, true, false, true] {
                let posts: [&dyn Fn(); 2] =
                    [&|| end.recv(1, 0, 8), &|| end.send(Operation::Send, 0, 8)];
                for post in posts {
                    shared.page.note_daemon_sleeps(sleeps);
                    post();
                    assert_eq!(rung(&shared), [PLACE]);
                    assert_eq!(is_woken(&shared), sleeps);
                    // It is awake, and a second post needs no system call.
                    post();
                    assert_eq!(rung(&shared), [PLACE]);
                    assert!(!is_woken(&shared));
                }
            }
            drop((end, device));
        });
        std::fs::remove_file(&path).unwrap();
    });
}
