//! The hidden IPv4 identification: how it changes an ICRC, and how to recover it from one.
//!
//! The ICRC covers the identification field of the IPv4 header, but a UDP socket can neither read
//! nor choose it. A CRC is affine: changing the identification changes the CRC by a difference that
//! depends on the changed bits and on the number n of bytes behind them, and on nothing else. In
//! polynomials over GF(2), modulo the CRC's P(x), and because each byte enters the CRC from its
//! lowest bit on:
//!
//! ```text
//!   icrc(id) ^ icrc(0) = id(x) * x^(8n + 32)
//!
//!                 |  first byte   |  second byte  |
//!   id(x):  bit   | 8  9 ..... 15 | 0  1 .....  7 |
//!           x^    |15 14 .....  8 | 7  6 .....  0 |
//! ```
//!
//! 1. A sender that knows its identification adds [`IdSpace::image`] of it to the ICRC for 0.
//! 2. A receiver multiplies the observed difference by x^-(8n + 32). If an identification explains
//!    the difference, the product is that identification, a polynomial of degree below 16; if not,
//!    it has a higher degree. So [`IdSpace::recover`] is exact, and no two identifications are ever
//!    confused.
//!
//! The cost to a receiver: of 32 check bits, 16 go into recovering the identification. Any single
//! flipped bit of a packet up to 9,000 bytes is still found, but heavier damage passes with
//! probability 2^-16 instead of 2^-32, unless the identification found is also compared with the
//! one that the sender is expected to use.
//!
//! Multiplication by a constant is linear, so both directions are a product of a bit vector with a
//! matrix: 16 columns for the image, 32 for the quotient, the same for all packets of one length.
//!
//! The congestion byte of the BTH, which the ICRC sees as all ones whatever it is, changes the CRC
//! of a packet's own bytes in the same way ([`IdSpace::congestion_image`]).

use crate::ip::IPV4_LEN;
use crate::udp::UDP_LEN;

/// The effect of each identification on the ICRC of packets of one length, and of the congestion
/// byte on the CRC of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpace {
    /// x^(8n + 32) times each power of x in an identification.
    images: [u32; 16],
    /// Images of the identifications of a segmented send.
    first_images: [u32; FIRST_IDS],
    /// x^-(8n + 32) times each power of x in an ICRC.
    quotients: [u32; 32],
    /// x^(8n + 32) times each half of a congestion byte, the lower half first; here n is the number
    /// of bytes behind that byte.
    congestion: [[u32; 16]; 2],
}

impl IdSpace {
    /// The space for packets with `len` bytes from the BTH to the last pad byte.
    pub const fn for_transport_len(len: usize) -> IdSpace {
        let shift = (8 * (BETWEEN_ID_AND_TRANSPORT as u64 + len as u64) + 32) % ORDER_OF_X;
        let images = powers_down_to(shift);
        IdSpace {
            images,
            first_images: first_images(&images),
            quotients: powers_down_to(ORDER_OF_X - shift),
            congestion: congestion_images(len),
        }
    }

    /// Difference of the ICRC if the identification is `id` instead of 0.
    #[inline]
    pub fn image(&self, id: u16) -> u32 {
        match self.first_images.get(usize::from(id)) {
            Some(image) => *image,
            None => image(&self.images, id),
        }
    }

    /// Difference of the CRC of a packet's bytes if its congestion byte is `byte` instead of 0.
    #[inline]
    pub fn congestion_image(&self, byte: u8) -> u32 {
        let [low, high] = &self.congestion;
        low[usize::from(byte & 0xf)] ^ high[usize::from(byte >> 4)]
    }

    /// Recovers the identification from `difference`: the received ICRC `^` the ICRC for
    /// identification 0.
    ///
    /// `None` if no identification explains it: the packet is damaged, or differs from what the
    /// ICRC for 0 was computed over.
    #[inline]
    pub fn recover(&self, difference: u32) -> Option<u16> {
        let quotient = product(&self.quotients, difference);
        let degree_is_below_16 = quotient.trailing_zeros() >= 16;
        degree_is_below_16.then_some(((quotient >> 16) as u16).swap_bytes())
    }
}

/// The [`IdSpace`] of every packet length, computed at first use.
///
/// Memory is allocated once for each length that occurs.
#[derive(Clone, Debug)]
pub struct IdSpaces {
    /// By length, in words of four bytes.
    spaces: Box<[Option<Box<IdSpace>>]>,
}

impl IdSpaces {
    /// For packets of at most `transport_len_max` bytes from the BTH to the last pad byte.
    pub fn new(transport_len_max: usize) -> IdSpaces {
        IdSpaces {
            spaces: vec![None; transport_len_max / 4 + 1].into(),
        }
    }

    /// Recovers the identification from `difference` in a packet of `len` bytes: see
    /// [`IdSpace::recover`].
    #[inline]
    pub fn recover(&mut self, len: usize, difference: u32) -> Option<u16> {
        self.for_transport_len(len)?.recover(difference)
    }

    /// The space for packets with `len` bytes from the BTH to the last pad byte.
    ///
    /// `None` for a length that no packet has: above the maximum, or not a multiple of four.
    #[inline]
    pub fn for_transport_len(&mut self, len: usize) -> Option<&IdSpace> {
        if !len.is_multiple_of(4) {
            return None;
        }
        let space = self.spaces.get_mut(len / 4)?;
        Some(space.get_or_insert_with(|| Box::new(IdSpace::for_transport_len(len))))
    }
}

/// Identifications from 0 on whose images are kept: those of one segmented send.
const FIRST_IDS: usize = 64;

#[inline]
fn image(images: &[u32; 16], id: u16) -> u32 {
    // The columns are in the order in which the bits enter the CRC.
    product(images, u32::from(id.swap_bytes()))
}

/// Images of identifications from 0 on.
const fn first_images(images: &[u32; 16]) -> [u32; FIRST_IDS] {
    let mut all = [0; FIRST_IDS];
    let mut id = 1;
    while id < FIRST_IDS {
        // The low byte of an identification enters the CRC last: bit n of it is column 8 + n.
        let lowest = id.trailing_zeros() as usize;
        all[id] = all[id & (id - 1)] ^ images[8 + lowest];
        id += 1;
    }
    all
}

/// Images of the halves of the congestion byte of a packet of `len` bytes, which a shorter one than
/// a BTH may lack.
const fn congestion_images(len: usize) -> [[u32; 16]; 2] {
    let mut all = [[0; 16]; 2];
    let Some(behind) = len.checked_sub(CONGESTION_AT + 1) else {
        return all;
    };
    let columns: [u32; 8] = powers_down_to((8 * behind as u64 + 32) % ORDER_OF_X);
    let mut bits = 1;
    while bits < 16 {
        let lowest = (bits as u32).trailing_zeros() as usize;
        all[0][bits] = all[0][bits & (bits - 1)] ^ columns[lowest];
        all[1][bits] = all[1][bits & (bits - 1)] ^ columns[4 + lowest];
        bits += 1;
    }
    all
}

/// Byte of the BTH that the ICRC sees as all ones: FECN, BECN, reserved.
const CONGESTION_AT: usize = 4;

/// Bytes behind the identification in the IPv4 header, and the UDP header.
const BETWEEN_ID_AND_TRANSPORT: usize = IPV4_LEN - 6 + UDP_LEN;

// Polynomials modulo P are words in the bit order of the reflected CRC: bit 31 is the coefficient
// of x^0.

/// P without its highest power, x^32.
const P: u32 = 0xedb8_8320;
/// x^0.
const ONE: u32 = 1 << 31;
/// x^1.
const X: u32 = 1 << 30;

/// P is primitive: this is the smallest positive power of x that is one.
const ORDER_OF_X: u64 = (1 << 32) - 1;

const fn times_x(a: u32) -> u32 {
    let overflow = a & 1 != 0;
    if overflow { a >> 1 ^ P } else { a >> 1 }
}

const fn times(a: u32, b: u32) -> u32 {
    let mut sum = 0;
    let mut shifted = a;
    let mut degree = 0;
    while degree < 32 {
        if b << degree & ONE != 0 {
            sum ^= shifted;
        }
        shifted = times_x(shifted);
        degree += 1;
    }
    sum
}

/// x to this power, by squaring.
const fn power_of_x(mut exponent: u64) -> u32 {
    let mut result = ONE;
    let mut square = X;
    while exponent > 0 {
        if exponent & 1 != 0 {
            result = times(result, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    result
}

/// x to the powers `shift + N - 1`, ..., `shift`.
const fn powers_down_to<const N: usize>(shift: u64) -> [u32; N] {
    let mut powers = [0; N];
    let mut power = power_of_x(shift);
    let mut i = N;
    while i > 0 {
        i -= 1;
        powers[i] = power;
        power = times_x(power);
    }
    powers
}

/// Sum of the columns whose bit is set; without branches, so that it compiles to vector
/// instructions.
#[inline]
fn product<const N: usize>(columns: &[u32; N], bits: u32) -> u32 {
    let mut sum = 0;
    for (i, column) in columns.iter().enumerate() {
        let selected = bits >> i & 1 != 0;
        sum ^= if selected { *column } else { 0 };
    }
    sum
}

#[cfg(test)]
mod tests;
