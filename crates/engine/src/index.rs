//! Places in the tables of a worker. Each table has its own type, so that no place is looked up in
//! another table.

/// Doorbells of a device.
pub(crate) const DOORBELLS: u32 = airdma_shm::DOORBELLS_MAX;

/// Tells domains, queue pairs and queues of a device apart for good: 64 bits, so that no process
/// ever has one twice.
pub(crate) type Serial = u64;

/// Bits of a serial number that count the objects of one client of a daemon. The bits above are
/// the client's number: 0 for the daemon's own process, and for all that no daemon serves.
const CLIENT_SHIFT: u32 = 44;
/// Clients of a daemon at one time, less one.
pub(crate) const CLIENT_MAX: u64 = (1 << (Serial::BITS - CLIENT_SHIFT)) - 1;

/// The client of a daemon whose object has this serial number; 0 for none.
pub(crate) const fn client_of(serial: Serial) -> u64 {
    serial >> CLIENT_SHIFT
}

/// The first serial number of a client's objects.
pub(crate) const fn first_serial_of(client: u64) -> Serial {
    (client << CLIENT_SHIFT) + 1
}

/// A place in a table of any kind.
pub(crate) trait Place: Copy {
    /// As an index of a slice.
    fn place(self) -> usize;
}

macro_rules! index {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => { $(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(u32);

        impl Place for $name {
            #[inline(always)]
            fn place(self) -> usize {
                self.0 as usize
            }
        }

        #[allow(dead_code, reason = "a table needs some of them")]
        impl $name {
            #[inline(always)]
            pub(crate) const fn new(place: u32) -> Self {
                $name(place)
            }

            /// The index of the place `place` in a table, which has fewer than 2^32.
            #[inline(always)]
            pub(crate) const fn from_place(place: usize) -> Self {
                $name(place as u32)
            }

            #[inline(always)]
            pub(crate) const fn get(self) -> u32 {
                self.0
            }

            /// As an index of a slice.
            #[inline(always)]
            pub(crate) const fn place(self) -> usize {
                self.0 as usize
            }
        }
    )+ };
}

index! {
    /// A queue pair. Its number is another one: see [`crate::tables::qp_table`].
    QpIndex,
    /// A completion queue.
    CqIndex,
    /// A shared receive queue; also its number, which extended connections name in their packets.
    SrqIndex,
    /// A host to which queue pairs are connected ([`crate::tables::peers`]).
    PeerIndex,
    /// A process at another host that speaks air mode, or a host whose rate is controlled
    /// ([`crate::air`]).
    AirIndex,
    /// A doorbell of the device.
    Doorbell,
}

impl CqIndex {
    /// The completion queue of a queue pair that has none.
    pub(crate) const NONE: CqIndex = CqIndex(u32::MAX);
}

impl QpIndex {
    /// The doorbell of a queue pair. Queue pairs whose places are equal modulo [`DOORBELLS`] share
    /// one.
    #[inline(always)]
    pub(crate) const fn doorbell(self) -> Doorbell {
        Doorbell(self.0 % DOORBELLS)
    }
}

impl Doorbell {
    /// The queue pairs that share this doorbell, among those before `end`.
    #[inline(always)]
    pub(crate) fn sharers(self, end: QpIndex) -> impl Iterator<Item = QpIndex> {
        (self.0..end.0).step_by(DOORBELLS as usize).map(QpIndex)
    }
}

macro_rules! handle {
    ($($(#[$doc:meta])* $name:ident of $index:ident),+ $(,)?) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name {
            pub(crate) index: $index,
            pub(crate) serial: Serial,
        }
    )+ };
}

handle! {
    /// A queue pair as its user names it: its place, and the serial number that no other queue
    /// pair of the device has. The handle of a queue pair that is gone finds no later one.
    QpHandle of QpIndex,
    /// A completion queue as its user names it.
    CqHandle of CqIndex,
    /// A shared receive queue as its user names it.
    SrqHandle of SrqIndex,
}

/// A protection domain of a device: a serial number that no other domain of the device ever has,
/// so that a key of a former domain opens nothing in a later one.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PdIndex(Serial);

impl PdIndex {
    /// The domain of a queue pair that has none; no domain has this number.
    pub(crate) const NONE: PdIndex = PdIndex(0);

    pub(crate) const fn new(serial: Serial) -> Self {
        PdIndex(serial)
    }

    pub(crate) const fn serial(self) -> Serial {
        self.0
    }
}
