//! A capture file of what the links carried, in the classic pcap format with nanoseconds and bare
//! IP packets (`LINKTYPE_RAW`), to be opened with Wireshark or tcpdump.

use airdma_transport::Time;

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_RAW: u32 = 101;
const SNAP_LEN: u32 = 65_535;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A growing capture file.
#[derive(Debug)]
pub(crate) struct Capture {
    file: Vec<u8>,
}

impl Capture {
    pub(crate) fn new() -> Self {
        let mut file = Vec::new();
        file.extend_from_slice(&MAGIC_NANOSECONDS.to_le_bytes());
        file.extend_from_slice(&[2, 0, 4, 0]); // version 2.4
        file.extend_from_slice(&[0; 8]); // time zone and accuracy, unused
        file.extend_from_slice(&SNAP_LEN.to_le_bytes());
        file.extend_from_slice(&LINKTYPE_RAW.to_le_bytes());
        Capture { file }
    }

    pub(crate) fn add(&mut self, at: Time, ip_packet: &[u8]) {
        let nanos = at.as_nanos();
        let len = ip_packet.len() as u32;
        let header = [
            (nanos / NANOS_PER_SECOND) as u32,
            (nanos % NANOS_PER_SECOND) as u32,
            len,
            len,
        ];
        for field in header {
            self.file.extend_from_slice(&field.to_le_bytes());
        }
        self.file.extend_from_slice(ip_packet);
    }

    pub(crate) fn file(&self) -> &[u8] {
        &self.file
    }
}
