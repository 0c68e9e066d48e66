//! Addresses without a neighbour entry yet: `rdma_resolve_addr(3)` does not wait for the kernel's
//! neighbour table, so a thread reads it until the entry appears or the time is over. The thread
//! ends when no address is left.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use airdma_engine::{CmChannel, Device, without_signals};

use super::abi::{RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED};
use crate::errno::Errno;
use airdma_preload::PerProcess;

/// On a healthy link an answer takes less than a millisecond; what takes longer may take a little
/// longer still.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(16);

/// The kernel gives up after three seconds; then it is made to ask again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// An address that is being resolved.
#[derive(Clone)]
pub struct Search {
    /// The number that the event carries.
    pub cookie: u64,
    /// The channel of the event.
    pub channel: Arc<CmChannel>,
    /// From which device,
    pub device: Arc<Device>,
    /// with which address,
    pub source: IpAddr,
    /// and where to.
    pub destination: IpAddr,
    /// When it ends in an error.
    pub deadline: Instant,
}

struct Searching {
    search: Search,
    asked: Instant,
}

#[derive(Default)]
struct Table {
    /// There is a thread.
    looks: bool,
    searches: Vec<Searching>,
}

/// Searches of this process: a parent's are found by its own thread.
static TABLE: PerProcess<Table> = PerProcess::new();

/// Begins a search. The event is `RDMA_CM_EVENT_ADDR_RESOLVED` or `RDMA_CM_EVENT_ADDR_ERROR`.
///
/// # Errors
/// Those of starting a thread.
pub fn begin(search: Search) -> Result<(), Errno> {
    search
        .device
        .ask_for_neighbour(search.source, search.destination);
    let mut table = TABLE.lock();
    if !table.looks {
        without_signals(|| {
            std::thread::Builder::new()
                .name("airdma-resolve".into())
                .spawn(run)
        })?;
        table.looks = true;
    }
    table.searches.push(Searching {
        search,
        asked: Instant::now(),
    });
    Ok(())
}

/// Ends the search: its event is not wanted any more.
pub fn cancel(cookie: u64) {
    TABLE
        .lock()
        .searches
        .retain(|one| one.search.cookie != cookie);
}

/// The event goes out through another channel.
pub fn move_to(cookie: u64, channel: &Arc<CmChannel>) {
    let mut table = TABLE.lock();
    let searches = table.searches.iter_mut();
    for one in searches.filter(|one| one.search.cookie == cookie) {
        one.search.channel = Arc::clone(channel);
    }
}

fn run() {
    let mut pause = FIRST_LOOK;
    loop {
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_LOOK);
        // The kernel is asked while others may use the table.
        let searches: Vec<_> = {
            let table = TABLE.lock();
            let searches = table.searches.iter();
            searches.map(|one| one.search.clone()).collect()
        };
        let over: Vec<_> = searches
            .iter()
            .filter_map(|search| Some((search.cookie, outcome(search)?)))
            .collect();
        let mut table = TABLE.lock();
        for (cookie, event) in over {
            let index = table
                .searches
                .iter()
                .position(|one| one.search.cookie == cookie);
            if let Some(index) = index {
                let one = table.searches.remove(index);
                one.search.channel.post(cookie, event);
                pause = FIRST_LOOK;
            }
        }
        for one in &mut table.searches {
            if one.asked.elapsed() >= ASK_AGAIN {
                one.asked = Instant::now();
                let Search {
                    source,
                    destination,
                    ..
                } = one.search;
                one.search.device.ask_for_neighbour(source, destination);
            }
        }
        if table.searches.is_empty() {
            table.looks = false;
            return;
        }
    }
}

fn outcome(search: &Search) -> Option<u32> {
    let known = search
        .device
        .knows_neighbour(search.source, search.destination);
    match known {
        Ok(true) => Some(RDMA_CM_EVENT_ADDR_RESOLVED),
        Ok(false) | Err(_) => {
            (Instant::now() >= search.deadline).then_some(RDMA_CM_EVENT_ADDR_ERROR)
        }
    }
}
