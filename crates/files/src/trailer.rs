//! The trailer of each file in the stream.

use crate::plan::TRAILER_BYTES;

/// Result of reading, and BLAKE3 of the data without holes.
///
/// For a file without holes the hash is that of `b3sum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trailer {
    /// All was read, and the file did not change meanwhile.
    Whole(blake3::Hash),
    /// The sender takes the file back; part of its data in the stream is zeros.
    Void(Flaw),
}

/// Why a file did not arrive although the transfer went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// It was changed, or removed, after it was offered.
    #[error("it was changed, cut or removed while it was sent: send it again")]
    Changed,
    /// The sender could not read it.
    #[error("the sender could not read it, or not as much as its size says")]
    Unreadable,
    /// The received data differs from what was read: a memory or disk error.
    #[error("it arrived damaged: send it again, and suspect the memory or a disk of either host")]
    Damaged,
    /// The receiver's file system treats its name as that of another entry of the offer.
    #[error(
        "another one of the files has this name for the receiver's file system, which has no case or another way to write it: rename one, and send it again"
    )]
    SameName,
    /// The receiver's file system does not support its name, or that of a directory above it.
    #[error(
        "the receiver's file system does not take its name, or that of a directory above it: rename it (FAT, NTFS and CIFS take no \\ : * ? \" < > | and no dot or blank at the end), or receive into a directory on another disk"
    )]
    Name,
    /// A symbolic link that the receiver's options leave out.
    #[error(
        "this symbolic link leads out of what is sent, or could: `airdma recv --symlinks all` makes it"
    )]
    LeadsOut,
    /// The receiver's file system has no symbolic links, or does not take this one.
    #[error(
        "the receiver's file system does not take this symbolic link: receive into a directory on another disk, or leave links out (`airdma recv --symlinks skip`)"
    )]
    NoLinks,
}

impl Trailer {
    pub fn encode(self) -> [u8; TRAILER_BYTES as usize] {
        let mut bytes = [0; TRAILER_BYTES as usize];
        match self {
            Self::Whole(hash) => bytes[1..].copy_from_slice(hash.as_bytes()),
            Self::Void(flaw) => bytes[0] = flaw.code(),
        }
        bytes
    }

    /// An unknown first byte counts as damage.
    pub fn decode(bytes: &[u8; TRAILER_BYTES as usize]) -> Self {
        let [how, hash @ ..] = *bytes;
        match how {
            0 => Self::Whole(blake3::Hash::from_bytes(hash)),
            code => {
                let flaw = Flaw::from_code(code).filter(|flaw| flaw.is_of_content());
                Self::Void(flaw.unwrap_or(Flaw::Damaged))
            }
        }
    }
}

impl Flaw {
    /// Every flaw.
    pub const ALL: [Self; 7] = [
        Self::Changed,
        Self::Unreadable,
        Self::Damaged,
        Self::SameName,
        Self::Name,
        Self::LeadsOut,
        Self::NoLinks,
    ];

    /// Code of the flaw on the wire; never zero.
    pub fn code(self) -> u8 {
        match self {
            Self::Changed => 1,
            Self::Unreadable => 2,
            Self::Damaged => 3,
            Self::SameName => 4,
            Self::Name => 5,
            Self::LeadsOut => 6,
            Self::NoLinks => 7,
        }
    }

    /// Whether it is about the file's content, not about its name at the receiver, which a sender
    /// does not know.
    pub(crate) fn is_of_content(self) -> bool {
        match self {
            Self::Changed | Self::Unreadable | Self::Damaged => true,
            Self::SameName | Self::Name | Self::LeadsOut | Self::NoLinks => false,
        }
    }

    /// The flaw of a code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.code() == code)
    }
}
