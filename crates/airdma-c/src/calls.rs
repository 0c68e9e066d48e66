//! Every call of the header, in its order.

use crate::arrival::{Arrival, Arrived, ByteRange};
use crate::failure::Failure;
use crate::handle::{PLACE, borrow, borrow_mut, free, give, take, text, vacate};
use crate::operation::{Any, Given, Outcome, UnderWay, Waited};
use airdma::{
    Blame, DatagramAddress, DatagramEndpoint, Device, Endpoint, Listener, Region, Remote, Rights,
    Shared,
};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

/// Runs a call that can fail; returns `NULL` or the error.
fn attempt(call: impl FnOnce() -> Result<(), Failure>) -> *mut Failure {
    let caught = catch_unwind(AssertUnwindSafe(call));
    match caught.unwrap_or_else(|_| Err(Failure::panicked())) {
        Ok(()) => ptr::null_mut(),
        Err(failure) => failure.into_raw(),
    }
}

/// Runs a call that starts an operation. `airdma_wait` reports its error.
fn begin(call: impl FnOnce() -> Result<Any, Failure>) -> *mut UnderWay {
    let caught = catch_unwind(AssertUnwindSafe(call));
    let begun = caught.unwrap_or_else(|_| Err(Failure::panicked()));
    Box::into_raw(Box::new(begun.unwrap_or_else(Any::failed).into()))
}

/// Runs a call that only reads or frees.
fn quietly<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

/// Defines calls of one of these kinds.
macro_rules! calls {
    ($($kind:ident fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(calls!(@$kind $name($($arg: $ty),*) $body);)*
    };
    (@attempt $name:ident($($arg:ident: $ty:ty),*) $body:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> *mut Failure {
            // SAFETY: the header requires of the C caller what the body requires.
            attempt(|| unsafe { $body })
        }
    };
    (@begin $name:ident($($arg:ident: $ty:ty),*) $body:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> *mut UnderWay {
            // SAFETY: as above.
            begin(|| unsafe { $body })
        }
    };
    (@free $name:ident($($arg:ident: $ty:ty),*) $body:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) {
            // SAFETY: as above.
            quietly((), || unsafe { $body })
        }
    };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn airdma_error_text(error: *const Failure) -> *const c_char {
    // SAFETY: null, or an error that is alive.
    quietly(c"".as_ptr(), || match unsafe { error.as_ref() } {
        Some(failure) => failure.text.as_ptr(),
        None => c"no error".as_ptr(),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn airdma_error_blame(error: *const Failure) -> c_uint {
    // SAFETY: null, or an error that is alive.
    quietly(0, || match unsafe { error.as_ref() } {
        Some(failure) => match failure.blame {
            Blame::You => 1,
            Blame::Peer => 2,
            Blame::Network => 3,
            Blame::System => 4,
        },
        None => 0,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn airdma_error_is_closed(error: *const Failure) -> bool {
    quietly(false, || {
        // SAFETY: null, or an error that is alive.
        unsafe { error.as_ref() }.is_some_and(|failure| failure.is_closed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn airdma_region_bytes(region: *mut Region) -> *mut c_void {
    // SAFETY: null, or a region that is alive.
    quietly(ptr::null_mut(), || match unsafe { region.as_mut() } {
        Some(region) => region.as_mut_ptr().cast(),
        None => ptr::null_mut(),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn airdma_region_length(region: *const Region) -> usize {
    quietly(0, || {
        // SAFETY: null, or a region that is alive.
        unsafe { region.as_ref() }.map_or(0, |region| region.len())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn airdma_arrival_has(
    arrival: *const Arrival,
    offset: usize,
    length: usize,
) -> bool {
    quietly(false, || {
        // SAFETY: null, or an arrival that is alive.
        unsafe { arrival.as_ref() }.is_some_and(|arrival| arrival.seen().has(part(offset, length)))
    })
}

calls! {
    free fn airdma_error_free(error: *mut Failure) { free(error) }

    attempt fn airdma_open(name: *const c_char, device: *mut *mut Device) {
        vacate(device)?;
        give(device, Device::open(text(name, "name of a device")?)?)
    }

    attempt fn airdma_towards(peer: *const c_char, device: *mut *mut Device) {
        vacate(device)?;
        give(device, Device::towards(text(peer, "address of the peer")?)?)
    }

    free fn airdma_device_free(device: *mut Device) { free(device) }

    attempt fn airdma_allocate(device: *const Device, length: usize, region: *mut *mut Region) {
        vacate(region)?;
        give(region, borrow(device, "device")?.allocate(length)?)
    }

    free fn airdma_region_free(region: *mut Region) { free(region) }

    attempt fn airdma_share(region: *mut *mut Region, rights: c_uint, shared: *mut *mut Shared) {
        vacate(shared)?;
        let known = u8::try_from(rights).ok().and_then(Rights::from_bits);
        let rights = known.ok_or_else(|| Failure::you(
            "rights that do not exist: add AIRDMA_READ, AIRDMA_WRITE, AIRDMA_ATOMIC, AIRDMA_RECORD and AIRDMA_RECORD_READ as needed",
        ))?;
        let taken = take(region, "region")?;
        match taken.share(rights) {
            Ok(opened) => give(shared, opened),
            Err(error) => {
                let failure = Failure::from(&error);
                if let Some(back) = error.into_region() {
                    give(region, back)?;
                }
                Err(failure)
            }
        }
    }

    attempt fn airdma_withdraw(shared: *mut *mut Shared, region: *mut *mut Region) {
        vacate(region)?;
        give(region, take(shared, "shared region")?.withdraw())
    }

    free fn airdma_shared_free(shared: *mut Shared) { free(shared) }

    attempt fn airdma_shared_remote(
        shared: *const Shared, to: *const Endpoint, remote: *mut [u8; Remote::BYTES],
    ) {
        let place = borrow_mut(remote, PLACE)?;
        *place = [0; Remote::BYTES];
        *place = borrow(shared, "shared region")?.remote(borrow(to, "endpoint")?)?.to_bytes();
        Ok(())
    }

    attempt fn airdma_shared_remote_for_records(
        shared: *const Shared, from: *const c_char, remote: *mut [u8; Remote::BYTES],
    ) {
        let place = borrow_mut(remote, PLACE)?;
        *place = [0; Remote::BYTES];
        let shared = borrow(shared, "shared region")?;
        *place = shared.remote_for_records(host(from)?)?.to_bytes();
        Ok(())
    }

    attempt fn airdma_shared_remote_for_reads(
        shared: *const Shared, from: *const c_char, remote: *mut [u8; Remote::BYTES],
    ) {
        let place = borrow_mut(remote, PLACE)?;
        *place = [0; Remote::BYTES];
        let shared = borrow(shared, "shared region")?;
        *place = shared.remote_for_reads(host(from)?)?.to_bytes();
        Ok(())
    }

    attempt fn airdma_shared_remote_for_group(
        shared: *const Shared, group: *const [u8; DatagramAddress::BYTES],
        agreed: *const [u8; Remote::BYTES], from: *const c_char, place: *mut [u8; Remote::BYTES],
    ) {
        let place = borrow_mut(place, PLACE)?;
        // Read first: it may be the place of the result.
        let agreed = match agreed.is_null() {
            true => None,
            false => Some(remote(agreed)?),
        };
        *place = [0; Remote::BYTES];
        let (shared, group) = (borrow(shared, "shared region")?, endpoint_at(group)?);
        *place = shared.remote_for_group(&group, agreed.as_ref(), host(from)?)?.to_bytes();
        Ok(())
    }

    attempt fn airdma_copy_out(shared: *const Shared, offset: usize, bytes: *mut c_void, length: usize) {
        let shared = borrow(shared, "shared region")?;
        check_length(shared, offset, length)?;
        if length == 0 {
            return Ok(());
        }
        borrow(bytes, "place for the bytes")?;
        // As long as the caller asked for, and no longer than the region.
        Ok(shared.copy_out(offset, std::slice::from_raw_parts_mut(bytes.cast(), length))?)
    }

    attempt fn airdma_copy_in(shared: *const Shared, offset: usize, bytes: *const c_void, length: usize) {
        let shared = borrow(shared, "shared region")?;
        check_length(shared, offset, length)?;
        if length == 0 {
            return Ok(());
        }
        borrow(bytes, "bytes to copy")?;
        Ok(shared.copy_in(offset, std::slice::from_raw_parts(bytes.cast(), length))?)
    }

    attempt fn airdma_word(shared: *const Shared, offset: usize, word: *mut u64) {
        let place = borrow_mut(word, PLACE)?;
        *place = 0;
        *place = borrow(shared, "shared region")?.word(offset)?;
        Ok(())
    }

    attempt fn airdma_listen(device: *const Device, port: u16, listener: *mut *mut Listener) {
        vacate(listener)?;
        give(listener, borrow(device, "device")?.listen(port)?)
    }

    free fn airdma_listener_free(listener: *mut Listener) { free(listener) }

    begin fn airdma_accept(listener: *const Listener) {
        Ok(Any::Endpoint(borrow(listener, "listener")?.accept()))
    }

    begin fn airdma_connect(device: *const Device, peer: *const c_char) {
        let peer = text(peer, "address of the peer")?;
        Ok(Any::Endpoint(borrow(device, "device")?.connect(peer)))
    }

    begin fn airdma_close(endpoint: *mut *mut Endpoint) {
        Ok(Any::Nothing(take(endpoint, "endpoint")?.close()))
    }

    free fn airdma_endpoint_free(endpoint: *mut Endpoint) { free(endpoint) }

    begin fn airdma_send(endpoint: *const Endpoint, region: *mut *mut Region, offset: usize, length: usize) {
        let endpoint = borrow(endpoint, "endpoint")?;
        Ok(Any::Region(endpoint.send(*take(region, "region")?, part(offset, length))))
    }

    begin fn airdma_recv(endpoint: *const Endpoint, region: *mut *mut Region, offset: usize, length: usize) {
        let endpoint = borrow(endpoint, "endpoint")?;
        Ok(Any::Message(endpoint.recv(*take(region, "region")?, part(offset, length))))
    }

    begin fn airdma_write(
        endpoint: *const Endpoint, region: *mut *mut Region, offset: usize, length: usize,
        to: *const [u8; Remote::BYTES], at: u64,
    ) {
        let (endpoint, to) = (borrow(endpoint, "endpoint")?, remote(to)?);
        Ok(Any::Region(endpoint.write(*take(region, "region")?, part(offset, length), &to, at)))
    }

    begin fn airdma_read(
        endpoint: *const Endpoint, region: *mut *mut Region, offset: usize, length: usize,
        from: *const [u8; Remote::BYTES], at: u64,
    ) {
        let (endpoint, from) = (borrow(endpoint, "endpoint")?, remote(from)?);
        Ok(Any::Region(endpoint.read(*take(region, "region")?, part(offset, length), &from, at)))
    }

    begin fn airdma_fetch_add(endpoint: *const Endpoint, on: *const [u8; Remote::BYTES], at: u64, add: u64) {
        Ok(Any::Word(borrow(endpoint, "endpoint")?.fetch_add(&remote(on)?, at, add)))
    }

    begin fn airdma_compare_swap(
        endpoint: *const Endpoint, on: *const [u8; Remote::BYTES], at: u64, compare: u64, swap: u64,
    ) {
        let endpoint = borrow(endpoint, "endpoint")?;
        Ok(Any::Word(endpoint.compare_swap(&remote(on)?, at, compare, swap)))
    }

    attempt fn airdma_tell_buffer(endpoint: *const Endpoint, bytes: u64, capacity: u64) {
        borrow(endpoint, "endpoint")?.tell_buffer(bytes, capacity);
        Ok(())
    }

    attempt fn airdma_datagrams_open(device: *const Device, endpoint: *mut *mut DatagramEndpoint) {
        vacate(endpoint)?;
        give(endpoint, borrow(device, "device")?.datagram_endpoint()?)
    }

    free fn airdma_datagrams_free(endpoint: *mut DatagramEndpoint) { free(endpoint) }

    attempt fn airdma_datagrams_address(
        endpoint: *const DatagramEndpoint, address: *mut [u8; DatagramAddress::BYTES],
    ) {
        let place = borrow_mut(address, PLACE)?;
        *place = [0; DatagramAddress::BYTES];
        *place = borrow(endpoint, "endpoint")?.address().to_bytes();
        Ok(())
    }

    begin fn airdma_write_record(
        endpoint: *const DatagramEndpoint, region: *mut *mut Region, offset: usize, length: usize,
        to: *const [u8; DatagramAddress::BYTES], place: *const [u8; Remote::BYTES], at: u64,
        immediate: *const u32,
    ) {
        let (endpoint, place) = (borrow(endpoint, "endpoint")?, remote(place)?);
        let to = endpoint_at(to)?;
        let (range, immediate) = (part(offset, length), immediate.as_ref().copied());
        let region = *take(region, "region")?;
        Ok(Any::Region(endpoint.write_record(&to, region, range, &place, at, immediate)))
    }

    attempt fn airdma_group_address(group: *const c_char, address: *mut [u8; DatagramAddress::BYTES]) {
        let place = borrow_mut(address, PLACE)?;
        *place = [0; DatagramAddress::BYTES];
        let group = ip(text(group, "address of the group")?)?;
        *place = DatagramAddress::of_group(group)?.to_bytes();
        Ok(())
    }

    attempt fn airdma_group_open(
        device: *const Device, group: *const [u8; DatagramAddress::BYTES],
        endpoint: *mut *mut DatagramEndpoint,
    ) {
        vacate(endpoint)?;
        give(endpoint, borrow(device, "device")?.group_endpoint(&endpoint_at(group)?)?)
    }

    begin fn airdma_read_record(
        endpoint: *const DatagramEndpoint, region: *mut *mut Region, offset: usize, length: usize,
        from: *const [u8; DatagramAddress::BYTES], place: *const [u8; Remote::BYTES], at: u64,
        deadline_ms: u32,
    ) {
        let (endpoint, place) = (borrow(endpoint, "endpoint")?, remote(place)?);
        let (from, range) = (endpoint_at(from)?, part(offset, length));
        let deadline = Duration::from_millis(deadline_ms.into());
        let region = *take(region, "region")?;
        Ok(Any::Fetched(endpoint.read_record(&from, region, range, &place, at, deadline)))
    }

    attempt fn airdma_peek_record(
        endpoint: *const DatagramEndpoint, shared: *const Shared, offset: usize,
        arrival: *mut *mut Arrival,
    ) {
        vacate(arrival)?;
        let shared = borrow(shared, "shared region")?;
        match borrow(endpoint, "endpoint")?.peek_record(shared, offset) {
            Some(seen) => give(arrival, Arrival::Seen(seen)),
            None => Ok(()),
        }
    }

    attempt fn airdma_close_record(
        endpoint: *const DatagramEndpoint, shared: *const Shared, offset: usize, closed: *mut bool,
    ) {
        let place = borrow_mut(closed, PLACE)?;
        *place = false;
        let shared = borrow(shared, "shared region")?;
        *place = borrow(endpoint, "endpoint")?.close_record(shared, offset)?;
        Ok(())
    }

    begin fn airdma_next_record(endpoint: *const DatagramEndpoint) {
        Ok(Any::Record(borrow(endpoint, "endpoint")?.record()))
    }

    attempt fn airdma_arrival_read(arrival: *const Arrival, arrived: *mut Arrived) {
        let place = borrow_mut(arrived, PLACE)?;
        *place = Arrived::default();
        *place = Arrived::of(borrow(arrival, "arrival")?.seen());
        Ok(())
    }

    attempt fn airdma_arrival_ranges(arrival: *const Arrival, ranges: *mut ByteRange, room: usize) {
        let valid = borrow(arrival, "arrival")?.seen().valid();
        let count = room.min(valid.len());
        if count > 0 {
            borrow(ranges, "place for the ranges")?;
            // No more than the caller has room for.
            let places = std::slice::from_raw_parts_mut(ranges, count);
            for (place, range) in places.iter_mut().zip(valid) {
                *place = ByteRange::of(range);
            }
        }
        Ok(())
    }

    attempt fn airdma_arrival_copy_out(arrival: *const Arrival, offset: usize, bytes: *mut c_void, length: usize) {
        let Arrival::Record(record) = borrow(arrival, "arrival")? else {
            return Err(Failure::you(
                "no record: the bytes of a read are in its region, and those of a message that is arriving in the shared one (airdma_copy_out)",
            ));
        };
        // Checked before a slice is made of it.
        if offset.checked_add(length).is_none_or(|end| end > record.len()) {
            return Err(outside(offset, length, "record", record.len()));
        }
        if length == 0 {
            return Ok(());
        }
        borrow(bytes, "place for the bytes")?;
        Ok(record.copy_out(offset, std::slice::from_raw_parts_mut(bytes.cast(), length))?)
    }

    free fn airdma_arrival_free(arrival: *mut Arrival) { free(arrival) }

    attempt fn airdma_wait(operation: *mut *mut UnderWay, timeout_ms: c_int, result: *mut Outcome) {
        // Set first, so that the C caller never reads what was on its stack.
        if let Some(place) = result.as_mut() {
            *place = Given::default().into_outcome();
        }
        let mut under_way = take(operation, "operation")?;
        match under_way.wait(timeout_ms) {
            Waited::NotYet => give(operation, *under_way),
            Waited::Over(given, failure) => {
                if let Some(place) = result.as_mut() {
                    *place = given.into_outcome();
                }
                failure.map_or(Ok(()), Err)
            }
        }
    }

    attempt fn airdma_notify(operation: *mut UnderWay, eventfd: c_int) {
        let under_way = borrow_mut(operation, "operation")?;
        if eventfd < 0 || is_something_else(eventfd) {
            return Err(no_eventfd(eventfd, &ErrorKind::InvalidInput.into()));
        }
        let notified = under_way.notify(BorrowedFd::borrow_raw(eventfd));
        notified.map_err(|error| no_eventfd(eventfd, &error))
    }

    free fn airdma_give_up(operation: *mut UnderWay) { free(operation) }
}

/// Whether a descriptor is open and not an eventfd: a write to it might block, or end the program.
fn is_something_else(descriptor: c_int) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
    link.is_ok_and(|what| what.as_os_str() != "anon_inode:[eventfd]")
}

fn no_eventfd(descriptor: c_int, error: &io::Error) -> Failure {
    Failure::you(&format!(
        "descriptor {descriptor} cannot be rung, make one with eventfd(2): {error}"
    ))
}

/// The range of a region that the caller names. It is checked later, with the region's length.
fn part(offset: usize, length: usize) -> Range<usize> {
    offset..offset.saturating_add(length)
}

/// # Safety
/// Null, or 24 bytes.
unsafe fn remote(bytes: *const [u8; Remote::BYTES]) -> Result<Remote, Failure> {
    // SAFETY: the caller's promise.
    Ok(Remote::from_bytes(unsafe {
        borrow(bytes, "region of the peer")
    }?)?)
}

/// # Safety
/// Null, or 28 bytes.
unsafe fn endpoint_at(
    bytes: *const [u8; DatagramAddress::BYTES],
) -> Result<DatagramAddress, Failure> {
    // SAFETY: the caller's promise.
    Ok(DatagramAddress::from_bytes(unsafe {
        borrow(bytes, "address of an endpoint")
    }?)?)
}

/// The host that a caller names, if it does.
///
/// # Safety
/// Null, or text.
unsafe fn host(name: *const c_char) -> Result<Option<IpAddr>, Failure> {
    if name.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    Ok(Some(ip(unsafe { text(name, "address of the host") }?)?))
}

/// Checks a length before memory is allocated for it.
fn check_length(shared: &Shared, offset: usize, length: usize) -> Result<(), Failure> {
    match offset.checked_add(length) {
        Some(end) if end <= shared.len() => Ok(()),
        _ => Err(outside(offset, length, "region", shared.len())),
    }
}

fn outside(offset: usize, length: usize, of: &str, bytes: usize) -> Failure {
    Failure::you(&format!(
        "{length} bytes at offset {offset} of a {of} of {bytes} bytes: stay within it"
    ))
}

fn ip(text: &str) -> Result<IpAddr, Failure> {
    text.parse()
        .map_err(|_| Failure::you(&format!("{text:?} is no address: give one as 192.0.2.2")))
}
