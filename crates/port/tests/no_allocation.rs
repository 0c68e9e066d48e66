//! Transmit and receive allocate nothing once they are warm.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use airdma_port::impair::Impaired;
use airdma_port::{Destination, Port, TransmitBatch, UdpConfig, UdpPort, sim};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn udp(segmentation: bool) -> (UdpPort, UdpPort) {
    let config = |port| UdpConfig {
        port,
        segmentation,
        ..UdpConfig::default()
    };
    let right = UdpPort::bind(&[address("127.0.0.6")], 0, config(0)).unwrap();
    let left = UdpPort::bind(&[address("127.0.0.5")], 0, config(right.port())).unwrap();
    (left, right)
}

/// Sends 100 packets of the usual sizes and receives them; returns how many came.
fn exchange(
    left: &mut dyn Port,
    right: &mut dyn Port,
    batch: &mut TransmitBatch,
    (at_least, bundles): (usize, bool),
) -> usize {
    for number in 0..100 {
        let len = if number % 10 == 9 { 16 } else { 1036 };
        let destination = Destination {
            address: address("127.0.0.6").into(),
            source_index: 0,
            tos: 2,
            hop_limit: 7,
            flow_label: 0,
            bundles: bundles && number >= 50,
        };
        let packet = batch.reserve(len).unwrap();
        packet.fill(number);
        // All for one queue pair, or they would not leave together.
        packet[5..8].fill(9);
        batch.commit(len, destination);
    }
    left.transmit(batch).unwrap();
    assert!(batch.is_empty());
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut arrived = 0;
    loop {
        let now = right.receive(64, &mut |_| {}).unwrap();
        arrived += now;
        left.receive(64, &mut |_| {}).unwrap();
        if now == 0 && arrived >= at_least {
            return arrived;
        }
        assert!(Instant::now() < deadline, "only {arrived} packets");
    }
}

fn measure(name: &str, left: &mut dyn Port, right: &mut dyn Port, wanted: (usize, bool)) {
    let mut batch = TransmitBatch::with_capacity(1 << 18, 256);
    for _ in 0..20 {
        exchange(left, right, &mut batch, wanted);
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let mut arrived = 0;
    for _ in 0..50 {
        arrived += exchange(left, right, &mut batch, wanted);
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    assert_eq!(allocations, 0, "{name}: for {arrived} packets");
}

/// One test only: the allocations of another would be counted too.
#[test]
fn nothing_is_allocated_per_packet() {
    // That the counter counts at all.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(vec![0_u8; 100]));
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before);

    for segmentation in [true, false] {
        let (mut left, mut right) = udp(segmentation);
        measure("udp", &mut left, &mut right, (100, true));
    }
    let own = [address("127.0.0.5")];
    let peer = [address("127.0.0.6")];
    let (mut left, mut right) = sim::pair(&own, &peer).unwrap();
    // A frame grows when it holds its first bundle.
    measure("sim", &mut left, &mut right, (100, false));

    let (left, mut right) = sim::pair(&own, &peer).unwrap();
    let spec = "drop=5%,dup=5%,reorder=5%,corrupt=5%".parse().unwrap();
    let mut left = Impaired::new(left, spec);
    measure("impaired", &mut left, &mut right, (1, false));
}
