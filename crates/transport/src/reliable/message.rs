//! A message that is repeated until its target has it: which of its units left, and which arrived.

use core::time::Duration;

use airdma_wire::Rkey;

use crate::time::Time;
use crate::work::SendRequest;

/// Units behind the first missing one that may have left: what the map of an answer covers.
const UNITS_IN_FLIGHT_MAX: u32 = u128::BITS;
/// Packets of a message after which one asks for an answer.
const ASK_EVERY: u8 = 8;
/// How long a message first waits for a target that is not ready, and at most.
const NOT_READY_FIRST: Duration = Duration::from_millis(1);
const NOT_READY_MOST: Duration = Duration::from_millis(50);

/// A posted message, in flight or waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) request: SendRequest,
    pub(super) va: u64,
    pub(super) rkey: Rkey,
    pub(super) imm: Option<[u8; 4]>,
    pub(super) id: u32,
    pub(super) token: u64,
    pub(super) unit: u32,
    units: u32,
    /// First unit of which no answer said that it arrived.
    base: u32,
    /// First unit that never left.
    next: u32,
    /// Bit `k`: unit `base + k` arrived.
    arrived: u128,
    /// Bit `k`: unit `base + k` left and is missing.
    missing: u128,
    /// Packets that asked for an answer, modulo 256.
    round: u8,
    /// Round in which each unit left last, by its last bits.
    rounds: [u8; UNITS_IN_FLIGHT_MAX as usize],
    /// Packets since the last one that asked.
    unasked: u8,
    /// When what is in flight of it is given up.
    pub(super) deadline: Option<Time>,
    /// Nothing of it leaves before: the target was not ready.
    pub(super) waits_until: Option<Time>,
    not_ready_since: Option<Time>,
    not_ready_wait: Duration,
    /// The message posted after it to the same destination, while both wait.
    pub(super) behind: u32,
}

impl Message {
    pub(super) fn new(request: SendRequest, behind: u32) -> Self {
        let (va, rkey, imm) = request.operation.record_target().unwrap_or((
            0,
            Rkey(0),
            request.operation.immediate(),
        ));
        Message {
            request,
            va,
            rkey,
            imm,
            id: 0,
            token: 0,
            unit: 1,
            units: 1,
            base: 0,
            next: 0,
            arrived: 0,
            missing: 0,
            round: 0,
            rounds: [0; UNITS_IN_FLIGHT_MAX as usize],
            unasked: 0,
            deadline: None,
            waits_until: None,
            not_ready_since: None,
            not_ready_wait: NOT_READY_FIRST,
            behind,
        }
    }

    /// Begins to send it.
    pub(super) fn start(&mut self, id: u32, token: u64, unit: u32) {
        (self.id, self.token) = (id, token);
        self.unit = unit.max(1);
        self.units = self.request.length.div_ceil(self.unit).max(1);
    }

    /// Units that left and of which nothing is known.
    pub(super) fn in_flight(&self) -> u32 {
        (self.sent_mask() & !self.arrived & !self.missing).count_ones()
    }

    /// Bits of the units that left.
    fn sent_mask(&self) -> u128 {
        match self.next - self.base {
            0 => 0,
            sent => u128::MAX >> (UNITS_IN_FLIGHT_MAX - sent),
        }
    }

    /// The unit that leaves next: a missing one, or a new one.
    pub(super) fn next_unit(&self, now: Time) -> Option<u32> {
        if self.waits_until.is_some_and(|until| until > now) {
            return None;
        }
        if self.missing != 0 {
            return Some(self.base + self.missing.trailing_zeros());
        }
        self.has_new().then_some(self.next)
    }

    fn has_new(&self) -> bool {
        self.next < self.units && self.next - self.base < UNITS_IN_FLIGHT_MAX
    }

    /// A unit leaves; `is_last`: the window has no room for another one. Returns its round, whether
    /// it asks for an answer, and whether it left before.
    pub(super) fn send(&mut self, unit: u32, is_last: bool) -> Leaves {
        let is_new = unit == self.next;
        if is_new {
            self.next += 1;
        } else {
            self.missing &= !(1 << (unit - self.base));
        }
        let round = self.round;
        self.rounds[(unit % UNITS_IN_FLIGHT_MAX) as usize] = round;
        self.unasked += 1;
        let has_more = self.missing != 0 || self.has_new();
        let asks = is_last || !has_more || self.unasked >= ASK_EVERY;
        if asks {
            self.round = round.wrapping_add(1);
            self.unasked = 0;
        }
        Leaves {
            round,
            asks,
            is_new,
        }
    }

    /// The target has all before `base`, and more by `map`. Returns how many units are newly known
    /// to have arrived, and whether some are newly known to be missing: those that left by `round`.
    /// `None` if that cannot be.
    pub(super) fn handle_map(&mut self, base: u32, map: u128, round: u8) -> Option<(u32, bool)> {
        if base > self.next || base >= self.units {
            return None;
        }
        let (base, map) = match base.checked_sub(self.base) {
            Some(ahead) => {
                let gained = ahead - (self.arrived & low_bits(ahead)).count_ones();
                self.shift(ahead);
                return Some(self.note(map, round, gained));
            }
            // An answer that a later one has overtaken.
            None => (self.base - base, map),
        };
        let map = map.checked_shr(base).unwrap_or(0);
        Some(self.note(map, round, 0))
    }

    fn note(&mut self, map: u128, round: u8, gained: u32) -> (u32, bool) {
        // The first missing unit is missing, whatever the map says.
        let fresh = map & !1 & self.sent_mask() & !self.arrived;
        self.arrived |= fresh;
        self.missing &= !self.arrived;
        let before = self.missing;
        let mut unknown = self.sent_mask() & !self.arrived & !self.missing;
        while unknown != 0 {
            let bit = unknown.trailing_zeros();
            unknown &= unknown - 1;
            let left = self.rounds[((self.base + bit) % UNITS_IN_FLIGHT_MAX) as usize];
            if round.wrapping_sub(left) as i8 >= 0 {
                self.missing |= 1 << bit;
            }
        }
        (gained + fresh.count_ones(), self.missing != before)
    }

    fn shift(&mut self, units: u32) {
        self.base += units;
        self.arrived = self.arrived.checked_shr(units).unwrap_or(0);
        self.missing = self.missing.checked_shr(units).unwrap_or(0);
    }

    /// Nothing that is in flight will be answered.
    pub(super) fn handle_silence(&mut self) {
        self.missing = self.sent_mask() & !self.arrived;
        self.unasked = 0;
        self.deadline = None;
    }

    /// The target is not ready. False if it has taken nothing for `most`.
    pub(super) fn handle_not_ready(&mut self, now: Time, most: Duration) -> bool {
        self.handle_silence();
        let since = *self.not_ready_since.get_or_insert(now);
        let until = now + self.not_ready_wait;
        self.not_ready_wait = (self.not_ready_wait * 2).min(NOT_READY_MOST);
        self.waits_until = Some(until);
        now.duration_since(since) < most
    }

    /// The target takes it.
    pub(super) fn note_ready(&mut self) {
        (self.waits_until, self.not_ready_since) = (None, None);
        self.not_ready_wait = NOT_READY_FIRST;
    }
}

/// How a unit leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaves {
    pub(super) round: u8,
    pub(super) asks: bool,
    pub(super) is_new: bool,
}

fn low_bits(count: u32) -> u128 {
    match count {
        0 => 0,
        1..UNITS_IN_FLIGHT_MAX => u128::MAX >> (UNITS_IN_FLIGHT_MAX - count),
        UNITS_IN_FLIGHT_MAX.. => u128::MAX,
    }
}
