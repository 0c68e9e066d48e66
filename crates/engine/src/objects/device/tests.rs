#![allow(clippy::unwrap_used)]

use super::*;
use crate::simulated::interface;
use airdma_port::{Capabilities, PortCounters, Received, TransmitBatch};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread::ThreadId;
use std::time::Duration;

/// A port that records which thread dropped it.
struct Told(Arc<Mutex<Option<ThreadId>>>);

impl Port for Told {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            datagram_bytes_max: usize::from(u16::MAX),
            equal_lengths: true,
            headroom: 0,
            sees_identification: true,
            sees_hop_limit: true,
            icrc_in_hardware: false,
            references_payload: false,
        }
    }

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        batch.clear();
        Ok(())
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(Received<'_>)) -> io::Result<usize> {
        Ok(0)
    }

    fn wait_descriptors(&self, _: &mut Vec<RawFd>) {}

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Some(std::thread::current().id());
    }
}

/// That may take a while, and the list of workers is locked meanwhile.
#[test]
fn who_looks_for_another_worker_takes_none_down() {
    let address = IpAddr::from([192, 0, 2, 1]);
    let [info, other] = [1, 2].map(|index| interface("looked", index, address));
    for _ in 0..20 {
        let told = Arc::new(Mutex::new(None));
        let core = Core::new(
            info.clone(),
            DeviceConfig::default(),
            Clock::running(),
            Random::kernel(),
        )
        .unwrap();
        let shared = Arc::new(SharedCore::new(core));
        shared.core.bind_port(Box::new(Told(Arc::clone(&told))));
        let open = &[Opened::new(&shared, None)];
        assert!(Arc::ptr_eq(&find_open(open, &info).unwrap().1, &shared));
        let gone = &AtomicBool::new(false);
        let owner = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !gone.load(Ordering::Relaxed) {
                    assert!(find_open(open, &other).is_none());
                }
            });
            let owner = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(1));
                drop(shared);
                gone.store(true, Ordering::Relaxed);
            });
            owner.thread().id()
        });
        assert_eq!(*told.lock().unwrap(), Some(owner));
        assert!(find_open(open, &info).is_none());
    }
}
