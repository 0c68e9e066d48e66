//! A capture file of many interfaces, with comments: the pcapng format (draft-ietf-opsawg-pcapng)
//! with bare IP packets and nanoseconds.

use airdma_transport::Time;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const LINKTYPE_RAW: u16 = 101;

const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Direction of a packet at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In = 1,
    Out = 2,
}

/// A growing file.
#[derive(Debug)]
pub(crate) struct Pcapng {
    file: Vec<u8>,
}

impl Pcapng {
    pub(crate) fn new() -> Self {
        let mut body = Vec::new();
        body.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        body.extend_from_slice(&[1, 0, 0, 0]); // version 1.0
        body.extend_from_slice(&[0xff; 8]); // length not known
        let mut pcapng = Pcapng { file: Vec::new() };
        pcapng.block(SECTION_HEADER, &body);
        pcapng
    }

    /// Declares the next interface; they count from zero.
    pub(crate) fn interface(&mut self, name: &str) {
        let mut body = Vec::new();
        body.extend_from_slice(&LINKTYPE_RAW.to_le_bytes());
        body.extend_from_slice(&[0; 6]); // reserved; no limit of length
        option(&mut body, IF_NAME, name.as_bytes());
        option(&mut body, IF_TSRESOL, &[NANOSECONDS]);
        option(&mut body, OPTION_END, &[]);
        self.block(INTERFACE, &body);
    }

    pub(crate) fn add(
        &mut self,
        at: Time,
        interface: usize,
        direction: Direction,
        comment: &str,
        ip_packet: &[u8],
    ) {
        let nanos = at.as_nanos();
        let len = ip_packet.len() as u32;
        let fields = [
            interface as u32,
            (nanos >> 32) as u32,
            nanos as u32,
            len,
            len,
        ];
        let mut body = Vec::with_capacity(ip_packet.len() + 64);
        for field in fields {
            body.extend_from_slice(&field.to_le_bytes());
        }
        padded(&mut body, ip_packet);
        if !comment.is_empty() {
            option(&mut body, OPTION_COMMENT, comment.as_bytes());
        }
        option(&mut body, EPB_FLAGS, &(direction as u32).to_le_bytes());
        option(&mut body, OPTION_END, &[]);
        self.block(ENHANCED_PACKET, &body);
    }

    pub(crate) fn file(&self) -> &[u8] {
        &self.file
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let len = (body.len() as u32 + 12).to_le_bytes();
        self.file.extend_from_slice(&kind.to_le_bytes());
        self.file.extend_from_slice(&len);
        self.file.extend_from_slice(body);
        self.file.extend_from_slice(&len);
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&(value.len() as u16).to_le_bytes());
    padded(body, value);
}

fn padded(body: &mut Vec<u8>, value: &[u8]) {
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}
