//! The registry of the processes that share the addresses of an interface: a file that all of them
//! map.
//!
//! It is changed under a lock on the file only, which the kernel releases when its holder is
//! killed. [`Registry::begin`] detects an unfinished change: every word is independent, so at worst
//! the socket indices are outdated. Whether a member lives is not derived from its process id:
//! during its life it holds a lock on one byte, far beyond the end of the file, which the kernel
//! releases too.
//!
//! Readers (for the owner of a range) take no lock, and may see a state of a moment ago: see
//! [`rows`](super::rows).

use super::departures::Departures;
use super::patience::Patience;
use super::rows::{ListenerRow, MemberRow, RangeRow, Rounds, SeatRow, Socket, Word};
use crate::random::random_u32;
use crate::sharing::runtime_dir::{
    keep, map, open_file, open_to_read, reserve, shared_directories, shared_directory,
};
use std::fs::{DirEntry, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Raised with the layout or the rules of members: processes of two versions do not share a
/// registry.
const VERSION: u32 = 4;
const MAGIC: u64 = u64::from_le_bytes(*b"airdmaS4");

pub(crate) const RANGES: usize = 256;
const MEMBERS_MAX: usize = RANGES;
const SEATS_MAX: usize = 2048;
const LISTENERS_MAX: usize = 2048;

/// A registry without living members is removed at this age: packets to its queue pairs, and peers
/// that wait for their retries, are long gone.
const UNUSED_MAX: Duration = Duration::from_secs(60 * 60);
/// Most files whose age is looked at when a registry is made.
const LOOKS_MAX: usize = 512;
const JOIN_TRIES: u32 = 16;

/// Offset of the bytes whose locks show which members live.
const LIVES_AT: i64 = 1 << 40;

#[repr(C)]
struct Layout {
    magic: Word,
    /// Random number, drawn when the file was made.
    secret: Word,
    /// Process id of the process that changes the registry, during a change.
    changing: Word,
    /// Incremented with each program that was attached after a change.
    programs: Word,
    /// Incremented with each round of probes.
    epoch: Rounds,
    /// Incremented with each range that is returned.
    clock: Word,
    /// Rows of the tables of sockets and listeners from which on all are free.
    seats_end: Word,
    listeners_end: Word,
    members: [MemberRow; MEMBERS_MAX],
    ranges: [RangeRow; RANGES],
    seats: [SeatRow; SEATS_MAX],
    listeners: [ListenerRow; LISTENERS_MAX],
}

/// Represents every address: no socket can have it.
const EVERYWHERE: u128 = u128::MAX;

/// Number of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member(u16);

impl Member {
    pub(crate) fn number(self) -> u16 {
        self.0
    }

    fn tag(self) -> u32 {
        u32::from(self.0) + 1
    }

    fn of(tag: u32) -> Option<Self> {
        let number = tag.checked_sub(1)?;
        ((number as usize) < MEMBERS_MAX).then_some(Member(number as u16))
    }
}

/// Index of a row in the table of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat(usize);

/// A socket entry with its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seated {
    pub(crate) seat: Seat,
    pub(crate) owner: Member,
    pub(crate) place: u16,
}

/// Reason why a process did not become a member.
#[derive(Debug)]
pub(crate) enum JoinError {
    /// The process with this id keeps the registry locked.
    Locked(u32),
    /// There can be no registry, or it is full.
    Impossible(io::Error),
}

impl From<io::Error> for JoinError {
    fn from(error: io::Error) -> Self {
        JoinError::Impossible(error)
    }
}

/// Reason why a listener was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenError {
    /// Another process listens to the service at the address.
    InUse,
    /// The table is full.
    Full,
}

/// The registry file, as one member sees it.
pub(crate) struct Registry {
    map: NonNull<Layout>,
    /// Opened separately from the mapping, which keeps its own open file as long as a child may
    /// have it.
    file: File,
    me: Member,
    path: PathBuf,
    departures: Option<Departures>,
}

// SAFETY: the mapping belongs to the value, and is only touched through atomics.
unsafe impl Send for Registry {}
// SAFETY: as above.
unsafe impl Sync for Registry {}

impl Registry {
    /// Joins the registry with living members, in whichever directory it is, since the preferred
    /// directory comes and goes with a session; or else the one there.
    ///
    /// # Errors
    /// [`JoinError::Locked`] if a process was stopped while holding the lock; the system's,
    /// `StorageFull` if there are too many members.
    pub(crate) fn join(interface_index: u32, namespace: u64) -> Result<Self, JoinError> {
        let name = format!("steering-{VERSION}-{namespace}-{interface_index}");
        for _ in 0..JOIN_TRIES {
            let there = shared_directories().into_iter().map(|it| it.join(&name));
            let path = match there.into_iter().find(|path| has_members(path)) {
                Some(path) => path,
                None => {
                    let path = shared_directory()?.join(&name);
                    make_room(&path);
                    path
                }
            };
            match Self::join_at(&path) {
                // The registry was removed as unused at this moment.
                Err(JoinError::Impossible(error)) if error.kind() == io::ErrorKind::NotFound => {}
                joined => return joined,
            }
        }
        Err(JoinError::Impossible(io::ErrorKind::WouldBlock.into()))
    }

    pub(crate) fn join_at(path: &Path) -> Result<Self, JoinError> {
        let file = open_file(path, true)?;
        keep(&file)?;
        reserve(&file, BYTES)?;
        let mapped = open_file(path, false)?;
        reserve(&mapped, BYTES)?;
        let mut this = Registry {
            // The file has at least `BYTES`; only processes of this user could truncate it, which
            // they do not.
            map: map(&mapped, BYTES)?.cast(),
            file,
            me: Member(0),
            path: path.to_path_buf(),
            departures: Departures::of(path).ok(),
        };
        let mut patience = Patience::new();
        while !try_lock(&this.file)? {
            if !patience.pauses(this.changer()) {
                return Err(JoinError::Locked(this.changer()));
            }
        }
        let unlock = Unlock(this.file.as_raw_fd());
        let number = this.file.metadata()?.ino();
        if mapped.metadata()?.ino() != number || std::fs::metadata(path)?.ino() != number {
            return Err(JoinError::Impossible(io::ErrorKind::NotFound.into()));
        }
        let layout = this.layout();
        if layout.magic.load(Ordering::Acquire) != MAGIC {
            // A new file, or an invalid one.
            this.clear();
            let secret = u64::from(random_u32()) << 32 | u64::from(random_u32());
            layout.secret.store(secret, Ordering::Relaxed);
            layout.epoch.start();
            layout.magic.store(MAGIC, Ordering::Release);
        }
        if this.remove_all_dead(None) > 0 {
            // Indices have changed in an unknown way: as after an unfinished change.
            this.begin();
        }
        this.me = this.take_number()?;
        drop(unlock);
        Ok(this)
    }

    /// Fills it with zeros, as in a new file. Requires the lock.
    fn clear(&self) {
        let words = self.map.as_ptr().cast::<Word>();
        for index in 0..BYTES / size_of::<Word>() {
            // SAFETY: within the mapping, which is aligned for words.
            unsafe { (*words.add(index)).store(0, Ordering::Relaxed) };
        }
    }

    fn take_number(&self) -> io::Result<Member> {
        for (number, row) in (0..).zip(&self.layout().members) {
            if !row.is_taken() && set_life(&self.file, Member(number)) {
                row.take();
                return Ok(Member(number));
            }
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    pub(crate) fn me(&self) -> Member {
        self.me
    }

    pub(crate) fn secret(&self) -> u64 {
        self.layout().secret.load(Ordering::Relaxed)
    }

    /// The watch for leaving members, if the kernel permits one.
    pub(crate) fn departures(&self) -> Option<&Departures> {
        self.departures.as_ref()
    }

    /// The descriptor whose lock shows that this member lives. A child after fork must close it.
    pub(crate) fn life(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Takes the lock if it is free: then [`Registry::unlock`] must be called.
    pub(crate) fn try_lock(&self) -> bool {
        try_lock(&self.file).unwrap_or(false)
    }

    pub(crate) fn unlock(&self) {
        drop(Unlock(self.file.as_raw_fd()));
    }

    /// Begins a change. Returns whether the last one was unfinished.
    pub(crate) fn begin(&self) -> bool {
        let me = u64::from(std::process::id());
        self.layout().changing.swap(me, Ordering::SeqCst) != 0
    }

    /// Process id of the process that changes the registry.
    pub(crate) fn changer(&self) -> u32 {
        self.layout().changing.load(Ordering::SeqCst) as u32
    }

    /// Ends a change.
    pub(crate) fn finish(&self) {
        self.layout().changing.store(0, Ordering::SeqCst);
    }

    /// Removes the entries of dead members. Returns the number of their sockets.
    pub(crate) fn remove_dead(&self) -> usize {
        self.remove_all_dead(Some(self.me))
    }

    fn remove_all_dead(&self, except: Option<Member>) -> usize {
        let mut sockets = 0;
        for (number, row) in (0..).zip(&self.layout().members) {
            let member = Member(number);
            if row.is_taken() && Some(member) != except && !lives(&self.file, member) {
                sockets += self.strip(member);
            }
        }
        sockets
    }

    /// Removes all entries of a member.
    fn strip(&self, member: Member) -> usize {
        let layout = self.layout();
        let tag = member.tag();
        for row in layout.ranges.iter().filter(|row| row.owner() == tag) {
            row.give_back(layout.clock.fetch_add(1, Ordering::Relaxed) + 1);
        }
        for row in layout.listeners.iter().filter(|row| row.owner() == tag) {
            row.clear();
        }
        let mut sockets = 0;
        for row in layout.seats.iter().filter(|row| row.owner() == tag) {
            row.clear();
            sockets += 1;
        }
        layout.members[usize::from(member.0)].give_back();
        sockets
    }

    /// Removes all entries of this member. Requires the lock.
    pub(crate) fn leave(&self) {
        self.strip(self.me);
    }

    /// Leases a range of queue pair numbers: one that was never used, or the one returned longest
    /// ago.
    pub(crate) fn lease(&self) -> Option<u8> {
        let rows = &self.layout().ranges;
        let start = random_u32() as usize;
        let order = (0..RANGES).map(|step| (start + step) % RANGES);
        let free = order.filter(|&range| rows[range].owner() == 0);
        let range = free.min_by_key(|&range| rows[range].rested())?;
        rows[range].take(self.me.tag());
        Some(range as u8)
    }

    /// Owner of a range.
    pub(crate) fn owner(&self, range: u8) -> Option<Member> {
        Member::of(self.layout().ranges[usize::from(range)].owner())
    }

    /// Ranges and their owners.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (u8, Member)> {
        (0..=u8::MAX).filter_map(|range| Some((range, self.owner(range)?)))
    }

    /// Adds a socket of this member. Once there are others, it watches for leaving members.
    pub(crate) fn add_socket(&self, address: IpAddr, place: u16) -> Option<Seat> {
        if place > 0 {
            self.watch();
        }
        let layout = self.layout();
        let seat = layout.seats.iter().position(|row| row.owner() == 0)?;
        layout
            .seats_end
            .fetch_max(seat as u64 + 1, Ordering::Relaxed);
        layout.seats[seat].enter(Socket {
            owner: self.me.tag(),
            place,
            address: address_bits(Some(address)),
        });
        Some(Seat(seat))
    }

    /// Removes a socket of this member; the last socket of the group gets its index.
    pub(crate) fn remove_socket(&self, seat: Seat, address: IpAddr) {
        let row = &self.layout().seats[seat.0];
        let place = row.place();
        row.clear();
        let last = self.seated(address).max_by_key(|other| other.place);
        if let Some(last) = last.filter(|last| last.place > place) {
            self.set_place(last.seat, place);
        }
    }

    pub(crate) fn set_place(&self, seat: Seat, place: u16) {
        self.layout().seats[seat.0].set_place(place);
    }

    /// The sockets at an address.
    pub(crate) fn seated(&self, address: IpAddr) -> impl Iterator<Item = Seated> {
        let wanted = address_bits(Some(address));
        let end = self.layout().seats_end.load(Ordering::Relaxed) as usize;
        let rows = self.layout().seats.iter().enumerate().take(end);
        rows.filter_map(move |(seat, row)| {
            let socket = row.read().filter(|socket| socket.address == wanted)?;
            Some(Seated {
                seat: Seat(seat),
                owner: Member::of(socket.owner)?,
                place: socket.place,
            })
        })
    }

    /// Starts the watch for leaving members; true if there was none. If the kernel refuses,
    /// misrouted packets show the departures.
    fn watch(&self) -> bool {
        let departures = self.departures.as_ref();
        departures.is_some_and(|departures| departures.watch().unwrap_or(false))
    }

    /// Socket index of a member at an address.
    pub(crate) fn place_of(&self, member: Member, address: IpAddr) -> Option<u16> {
        let found = self.seated(address).find(|seated| seated.owner == member);
        Some(found?.place)
    }

    /// Begins a round of probes, and returns its number.
    pub(crate) fn next_epoch(&self) -> u64 {
        self.layout().epoch.next()
    }

    /// Records a probe to a socket of this member, so another one is there. One thread at a time
    /// calls it.
    pub(crate) fn probed(&self, address: IpAddr, place: u16, epoch: u64) {
        if self.watch() {
            // Its sender may have left before the watch began: one check, as after any departure.
            drop(open_file(&self.path, false));
        }
        let layout = self.layout();
        let wanted = address_bits(Some(address));
        for row in layout
            .seats
            .iter()
            .filter(|row| row.owner() == self.me.tag())
        {
            if row.read().is_some_and(|socket| socket.address == wanted) {
                row.probed(&layout.epoch, epoch, place);
            }
        }
    }

    /// Result of a probe of that round.
    pub(crate) fn answer(&self, seat: Seat, epoch: u64) -> Option<u16> {
        self.layout().seats[seat.0].answer(epoch)
    }

    /// Registers a listener of this member. Those of other processes must not overlap, as with
    /// sockets.
    pub(crate) fn listen(&self, service: u64, address: Option<IpAddr>) -> Result<(), ListenError> {
        let layout = self.layout();
        let wanted = address_bits(address);
        let mine = self.me.tag();
        let of_service = |row: &ListenerRow| row.read().filter(|it| it.service == service);
        let is_taken = layout.listeners.iter().any(|row| {
            let other = of_service(row).filter(|it| it.owner != mine && !it.is_closed);
            other.is_some_and(|it| overlap(it.address, wanted))
        });
        if is_taken {
            return Err(ListenError::InUse);
        }
        let find = |is_wanted: &dyn Fn(&ListenerRow) -> bool| {
            let mut rows = layout.listeners.iter().enumerate();
            rows.find(|(_, row)| is_wanted(row))
        };
        // The same one, own or closed; else a free one; else one that is kept for late messages.
        let (index, row) = find(&|row| of_service(row).is_some_and(|it| it.address == wanted))
            .or_else(|| find(&|row| row.owner() == 0))
            .or_else(|| find(&|row| row.owner() == mine && row.is_closed()))
            .or_else(|| find(&ListenerRow::is_closed))
            .ok_or(ListenError::Full)?;
        layout
            .listeners_end
            .fetch_max(index as u64 + 1, Ordering::Relaxed);
        row.enter(mine, service, wanted);
        Ok(())
    }

    /// Closes a listener of this member.
    pub(crate) fn close_listener(&self, service: u64, address: Option<IpAddr>) {
        for row in &self.layout().listeners {
            row.close(self.me.tag(), service, address_bits(address));
        }
    }

    /// The listeners that matter at an address, each service once; those for this address alone
    /// first, then those not closed.
    pub(crate) fn listeners(&self, address: IpAddr) -> Vec<(u64, Member)> {
        let rank = |at: u128| {
            let of_family = if address.is_ipv4() {
                IpAddr::V4(Ipv4Addr::UNSPECIFIED)
            } else {
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            };
            let ranks = [Some(address), Some(of_family), None].map(address_bits);
            ranks.iter().position(|&bits| bits == at)
        };
        let layout = self.layout();
        let end = layout.listeners_end.load(Ordering::Relaxed) as usize;
        let mut found: Vec<_> = layout
            .listeners
            .iter()
            .take(end)
            .filter_map(|row| {
                let it = row.read()?;
                let rank = rank(it.address)?;
                Some((it.service, it.is_closed, rank, Member::of(it.owner)?))
            })
            .collect();
        found.sort_by_key(|&(service, closed, rank, _)| (service, closed, rank));
        found.dedup_by_key(|&mut (service, ..)| service);
        // The program of a group has only the first ones.
        found.sort_by_key(|&(service, closed, ..)| (closed, service));
        let strip = |(service, _, _, owner)| (service, owner);
        found.into_iter().map(strip).collect()
    }

    /// Makes this member answer requests for services without a listener.
    pub(crate) fn manage(&self) {
        self.layout().members[usize::from(self.me.0)].manage();
    }

    /// A member with a connection manager and a socket at the address.
    pub(crate) fn manager(&self, address: IpAddr) -> Option<Seated> {
        self.seated(address)
            .find(|seated| self.layout().members[usize::from(seated.owner.0)].manages())
    }

    /// Number of programs attached after changes.
    pub(crate) fn programs(&self) -> u64 {
        self.layout().programs.load(Ordering::Relaxed)
    }

    pub(crate) fn count_program(&self) {
        self.layout().programs.fetch_add(1, Ordering::Relaxed);
    }

    fn layout(&self) -> &Layout {
        // SAFETY: a mapping of that size lives as long as `self`; all of it is atomics, for which
        // any bits are valid.
        unsafe { self.map.as_ref() }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, with its length.
        unsafe { libc::munmap(self.map.as_ptr().cast(), BYTES) };
    }
}

const BYTES: usize = size_of::<Layout>();
const _: () = assert!(BYTES.is_multiple_of(size_of::<Word>()));

fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: flock takes no pointer.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock {
        Ok(false)
    } else {
        Err(error)
    }
}

/// Releases the lock explicitly: a child may have the open file too.
struct Unlock(RawFd);

impl Drop for Unlock {
    fn drop(&mut self) {
        // SAFETY: flock takes no pointer.
        unsafe { libc::flock(self.0, libc::LOCK_UN) };
    }
}

fn byte_of(member: Member) -> libc::flock {
    lives_of(member, 1)
}

/// The lock bytes of some members.
fn lives_of(first: Member, count: usize) -> libc::flock {
    // SAFETY: all zero is a value of this struct of integers.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = LIVES_AT + i64::from(first.0);
    range.l_len = count as i64;
    range
}

/// Marks a member as living until the file is closed. False if it is already.
fn set_life(file: &File, member: Member) -> bool {
    let range = byte_of(member);
    // SAFETY: the kernel reads the struct.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) == 0 }
}

/// Whether a registry exists whose members live.
///
/// It is opened for reading only, since watching processes take the end of a writer for a
/// departure.
fn has_members(path: &Path) -> bool {
    let Ok(file) = open_to_read(path) else {
        return false;
    };
    let mut range = lives_of(Member(0), MEMBERS_MAX);
    // SAFETY: the kernel reads and writes the struct.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    result == 0 && range.l_type != libc::F_UNLCK as libc::c_short
}

/// Called before a registry is made at `path`: removes registries and orphan notices beside it that
/// have been unused for long, mostly of network namespaces that are gone.
///
/// A namespace that adds a file looks at [`LOOKS_MAX`] others, from a random one on, so the files
/// do not accumulate; joining the registry of before costs nothing.
fn make_room(path: &Path) {
    let Some(directory) = path.parent().filter(|_| !path.exists()) else {
        return;
    };
    let is_ours = |entry: &DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        ["steering-", "will-"]
            .iter()
            .any(|kind| name.starts_with(kind))
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let entries: Vec<_> = entries.filter(is_ours).collect();
    let start = random_u32() as usize % entries.len().max(1);
    let looks = entries.len().min(LOOKS_MAX);
    for entry in entries.iter().cycle().skip(start).take(looks) {
        let age = entry.metadata().and_then(|it| it.modified());
        let is_old = age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNUSED_MAX));
        if !is_old {
            continue;
        }
        let path = entry.path();
        // Under the lock, so that no process joins meanwhile; a file of notices is locked as long
        // as its owner lives.
        if let Ok(file) = open_to_read(&path)
            && try_lock(&file).unwrap_or(false)
        {
            let _unlock = Unlock(file.as_raw_fd());
            if !has_members(&path) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

/// Whether another process holds the lock of that member.
fn lives(file: &File, member: Member) -> bool {
    let mut range = byte_of(member);
    // SAFETY: the kernel reads and writes the struct.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    // If the kernel does not tell, every member counts as living.
    result != 0 || range.l_type != libc::F_UNLCK as libc::c_short
}

fn address_bits(address: Option<IpAddr>) -> u128 {
    let ip = match address {
        Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped(),
        Some(IpAddr::V6(ip)) => ip,
        None => return EVERYWHERE,
    };
    ip.to_bits()
}

/// Whether a listener at one address would get packets for the other.
fn overlap(a: u128, b: u128) -> bool {
    let is_v4 = |bits: u128| Ipv6Addr::from_bits(bits).to_ipv4_mapped().is_some();
    let covers = |wide: u128, bits: u128| {
        let of_family = [
            address_bits(Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED))),
            address_bits(Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED))),
        ];
        wide == EVERYWHERE || (of_family.contains(&wide) && is_v4(wide) == is_v4(bits))
    };
    a == b || covers(a, b) || covers(b, a)
}

#[cfg(test)]
mod tests;
