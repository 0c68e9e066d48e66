//! Counts of what happened in a world.

use std::collections::HashMap;

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub worlds: u64,
    pub actions: u64,
    pub packets: u64,
    pub lost: u64,
    pub damaged: u64,
    pub requests: u64,
    pub receives: u64,
    pub completions: u64,
    pub failures: u64,
    pub kills: u64,
    pub bytes: u64,
    pub events: u64,
    /// Datagrams that an attacker forged.
    pub forged: u64,
    /// Those of them that are about records.
    pub forged_records: u64,
    /// Packets through rings of processes of one host.
    pub in_rings: u64,
    /// Rings that a process wrote garbage into.
    pub damaged_rings: u64,
    /// Records that were written, that ended at a target, and that ended without all bytes.
    pub records: u64,
    pub records_told: u64,
    pub records_partial: u64,
    /// Those that were reliable, and those of them that their sources knew to be whole.
    pub reliable: u64,
    pub reliable_whole: u64,
    /// Reads by datagrams; and those that ended whole, with a part, and refused.
    pub reads: u64,
    pub reads_whole: u64,
    pub reads_partial: u64,
    pub reads_refused: u64,
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, other: &Counts) {
        let Counts {
            worlds,
            actions,
            packets,
            lost,
            damaged,
            requests,
            receives,
            completions,
            failures,
            kills,
            bytes,
            events,
            forged,
            forged_records,
            in_rings,
            damaged_rings,
            records,
            records_told,
            records_partial,
            reliable,
            reliable_whole,
            reads,
            reads_whole,
            reads_partial,
            reads_refused,
        } = other;
        self.worlds += worlds;
        self.actions += actions;
        self.packets += packets;
        self.lost += lost;
        self.damaged += damaged;
        self.requests += requests;
        self.receives += receives;
        self.completions += completions;
        self.failures += failures;
        self.kills += kills;
        self.bytes += bytes;
        self.events += events;
        self.forged += forged;
        self.forged_records += forged_records;
        self.in_rings += in_rings;
        self.damaged_rings += damaged_rings;
        self.records += records;
        self.records_told += records_told;
        self.records_partial += records_partial;
        self.reliable += reliable;
        self.reliable_whole += reliable_whole;
        self.reads += reads;
        self.reads_whole += reads_whole;
        self.reads_partial += reads_partial;
        self.reads_refused += reads_refused;
    }
}

/// Number of completions by kind.
pub type Seen = HashMap<
    (
        airdma_model::Service,
        airdma_model::Opcode,
        airdma_model::Status,
    ),
    u64,
>;
