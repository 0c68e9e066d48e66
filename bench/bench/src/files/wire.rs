//! Links, and the cases measured on each.

use airdma_link::Options as LinkOptions;
use regex::Regex;

use super::Files;
use super::content::{CONTENTS, Content, SMALL};
use super::peer::{PEERS, Peer};

/// A link and its name.
pub struct Wire {
    pub name: &'static str,
    /// Description for readers.
    pub label: &'static str,
    /// Profile of the radio, if there is one.
    pub profile: Option<&'static str>,
}

pub const WIRES: [Wire; 3] = [
    Wire {
        name: "veth",
        label: "a plain veth, at the rate of the machine",
        profile: None,
    },
    Wire {
        name: "wifi5-80",
        label: "emulated Wi-Fi 5, 80 MHz, 35 dB",
        profile: Some("wifi5-80"),
    },
    Wire {
        name: "wifi6-80",
        label: "emulated Wi-Fi 6, 80 MHz, 35 dB",
        profile: Some("wifi6-80"),
    },
];
/// A good signal.
const SNR_DB: f64 = 35.0;

impl Wire {
    /// Measurement whose rate counts as the line rate.
    pub fn measure(&self) -> &'static str {
        match self.profile {
            Some(_) => "the best second of bare UDP",
            None => "iperf3's TCP",
        }
    }

    pub fn options(&self, seed: u64) -> LinkOptions {
        match self.profile {
            Some(profile) => LinkOptions {
                profile: profile.into(),
                snr: Some(SNR_DB),
                seed,
                ..LinkOptions::default()
            },
            None => LinkOptions {
                plain: true,
                whole: true,
                ..LinkOptions::default()
            },
        }
    }
}

/// A cell of the table.
#[derive(Clone, Copy)]
pub struct Row {
    pub wire: &'static Wire,
    pub peer: Peer,
    pub content: Content,
}

impl Row {
    pub fn name(&self) -> String {
        let (wire, peer, content) = (self.wire.name, self.peer.name(), self.content.name);
        format!("{wire}/{peer}/{content}")
    }
}

/// Rows that the options select and this machine can measure, by link and content, so that peers
/// take turns.
pub fn rows(options: &Files, only: Option<&Regex>) -> Vec<Row> {
    let (wires, contents) = match options.quick {
        true => (&WIRES[..1], &SMALL[..]),
        false => (&WIRES[..], &CONTENTS[..]),
    };
    let peers: Vec<Peer> = PEERS
        .into_iter()
        .filter(|peer| peer.missing().is_none())
        .collect();
    let mut rows = Vec::new();
    for wire in wires {
        for content in contents {
            rows.extend(peers.iter().map(|peer| Row {
                wire,
                peer: *peer,
                content: *content,
            }));
        }
    }
    rows.retain(|row| only.is_none_or(|only| only.is_match(&row.name())));
    rows
}
