//! The classic BPF program that selects the socket of a packet, by the registry's content.
//!
//! ```text
//! message between processes      -> the socket index in it
//! queue pair 1: REQ, SIDR_REQ    -> the service's listener, else a process with a manager
//!               other messages   -> the range in the top byte of the id of the receiver
//! any other queue pair           -> the range in bits 12 to 19 of its number
//! ```
//!
//! It reads the UDP payload: BTH (12 bytes), DETH (8), and the management datagram, whose attribute
//! is at 16 and whose body at 24 (IBTA 9.2, 13.4.3, 12.6). A result beyond the last socket leaves
//! the choice to the kernel. A truncated packet goes to the first socket, and is dropped there.

use airdma_port::sharing::{MARK_AT, PLACE_AT, VERSION_MASK};
use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD,
    BPF_RET, BPF_RSH, BPF_W, sock_filter,
};

/// Attributes of messages that name a service, and of the one that starts with the receiver's id.
pub(crate) const REQ: u16 = 0x10;
pub(crate) const SIDR_REQ: u16 = 0x17;
pub(crate) const SIDR_REP: u16 = 0x18;

const OPCODE_AT: u32 = 0;
const UD_SEND_ONLY: u32 = 0x64;
/// Offset of the word whose low 24 bits are the queue pair number.
const QPN_AT: u32 = 4;
const MAD_AT: u32 = 20;
const ATTRIBUTE_AT: u32 = MAD_AT + 16;
const FIRST_ID_AT: u32 = MAD_AT + 24;
const SECOND_ID_AT: u32 = FIRST_ID_AT + 4;
const SERVICE_AT: u32 = FIRST_ID_AT + 8;

/// A result that leaves the choice to the kernel: no group has as many sockets.
const ANY: u32 = 0xffff_ffff;

/// Most listeners in the program; packets for others are forwarded.
///
/// With them and 256 ranges the program stays within the limit of kernels before 6.8
/// (`net.core.optmem_max`, 20 KiB).
pub(crate) const SERVICES_MAX: usize = 64;

/// Selection at one address, by socket index in the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Ranges of queue pair numbers (bits 12 to 19), with their owners.
    pub(crate) ranges: Vec<(u8, u16)>,
    /// Services with listeners, the most important first.
    pub(crate) services: Vec<(u64, u16)>,
    /// Answers requests for services without a listener.
    pub(crate) manager: Option<u16>,
}

impl Plan {
    /// Assembles the program.
    pub(crate) fn assemble(mut self) -> Vec<sock_filter> {
        self.ranges.sort_unstable();
        self.services.truncate(SERVICES_MAX);
        let mut code = Code::default();
        let (message, by_range, management, request, sidr_rep) = (
            code.label(),
            code.label(),
            code.label(),
            code.label(),
            code.label(),
        );
        code.load(BPF_B, MARK_AT as u32);
        code.calculate(BPF_AND, u32::from(VERSION_MASK));
        code.branch(BPF_JEQ, u32::from(VERSION_MASK), message);
        code.load(BPF_W, QPN_AT);
        code.calculate(BPF_AND, 0xff_ffff);
        code.branch(BPF_JEQ, 1, management);
        code.calculate(BPF_RSH, 12);
        code.calculate(BPF_AND, 0xff);
        code.jump(by_range);

        code.place(message);
        code.load(BPF_H, PLACE_AT as u32);
        code.step(BPF_RET | libc::BPF_A, 0);

        code.place(management);
        let datagram = code.label();
        code.load(BPF_B, OPCODE_AT);
        code.branch(BPF_JEQ, UD_SEND_ONLY, datagram);
        code.answer(ANY);
        code.place(datagram);
        code.load(BPF_H, ATTRIBUTE_AT);
        code.branch(BPF_JEQ, u32::from(REQ), request);
        code.branch(BPF_JEQ, u32::from(SIDR_REQ), request);
        code.branch(BPF_JEQ, u32::from(SIDR_REP), sidr_rep);
        code.load(BPF_B, SECOND_ID_AT);
        code.jump(by_range);
        code.place(sidr_rep);
        code.load(BPF_B, FIRST_ID_AT);
        code.jump(by_range);

        code.place(request);
        code.load(BPF_W, SERVICE_AT + 4);
        let mut services = self.services;
        // Services with the same low word form a group.
        services.sort_unstable_by_key(|&(service, _)| (service as u32, service));
        let nobody = self.manager.map_or(ANY, u32::from);
        let groups: Vec<_> = services
            .chunk_by(|(a, _), (b, _)| *a as u32 == *b as u32)
            .collect();
        code.services(&groups, nobody);

        code.place(by_range);
        // A range without an owner joins the one before it.
        let mut ranges = self.ranges;
        ranges.dedup_by_key(|&mut (_, place)| place);
        code.ranges(&ranges);
        code.finish()
    }
}

/// A program under construction: conditional jumps reach only 255 steps, so each jumps around an
/// unconditional one.
#[derive(Default)]
struct Code {
    steps: Vec<sock_filter>,
    /// Position of each label, once it is known.
    labels: Vec<usize>,
    /// Jumps, with their labels.
    jumps: Vec<(usize, Label)>,
}

#[derive(Clone, Copy)]
struct Label(usize);

impl Code {
    fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() - 1)
    }

    fn place(&mut self, label: Label) {
        self.labels[label.0] = self.steps.len();
    }

    fn step(&mut self, code: u32, k: u32) {
        self.steps.push(sock_filter {
            code: code as u16,
            jt: 0,
            jf: 0,
            k,
        });
    }

    fn load(&mut self, size: u32, at: u32) {
        self.step(BPF_LD | size | BPF_ABS, at);
    }

    fn calculate(&mut self, how: u32, with: u32) {
        self.step(BPF_ALU | how | BPF_K, with);
    }

    fn answer(&mut self, place: u32) {
        self.step(BPF_RET | BPF_K, place);
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.steps.len(), to));
        self.step(BPF_JMP | BPF_JA, 0);
    }

    fn branch(&mut self, test: u32, k: u32, to: Label) {
        self.steps.push(sock_filter {
            code: (BPF_JMP | test | BPF_K) as u16,
            jt: 0,
            jf: 1,
            k,
        });
        self.jump(to);
    }

    /// Searches the sorted ranges for the last that begins at or below the accumulator.
    fn ranges(&mut self, ranges: &[(u8, u16)]) {
        match ranges {
            [] => self.answer(ANY),
            [(_, place)] => self.answer(u32::from(*place)),
            _ => {
                let (low, high) = ranges.split_at(ranges.len() / 2);
                let upper = self.label();
                self.branch(BPF_JGE, u32::from(high[0].0), upper);
                self.ranges(low);
                self.place(upper);
                self.ranges(high);
            }
        }
    }

    /// Searches for the group whose low word is in the accumulator, and in it for the high word.
    fn services(&mut self, groups: &[&[(u64, u16)]], nobody: u32) {
        match groups {
            [] => self.answer(nobody),
            [group] => {
                let found = self.label();
                self.branch(BPF_JEQ, group[0].0 as u32, found);
                self.answer(nobody);
                self.place(found);
                self.load(BPF_W, SERVICE_AT);
                for &(service, place) in *group {
                    let this = self.label();
                    let next = self.label();
                    self.branch(BPF_JEQ, (service >> 32) as u32, this);
                    self.jump(next);
                    self.place(this);
                    self.answer(u32::from(place));
                    self.place(next);
                }
                self.answer(nobody);
            }
            _ => {
                let (low, high) = groups.split_at(groups.len() / 2);
                let upper = self.label();
                self.branch(BPF_JGE, high[0][0].0 as u32, upper);
                self.services(low, nobody);
                self.place(upper);
                self.services(high, nobody);
            }
        }
    }

    fn finish(mut self) -> Vec<sock_filter> {
        for (at, to) in self.jumps {
            // All jumps lead forward.
            self.steps[at].k = (self.labels[to.0] - at - 1) as u32;
        }
        self.steps
    }
}

#[cfg(test)]
mod tests;
