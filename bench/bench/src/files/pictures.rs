//! The measurement as bars.

use std::path::{Path, PathBuf};

use anyhow::Result;
use plotters::style::RGBColor;

use super::content::{CONTENTS, SMALL};
use super::peer::{PEERS, Peer};
use super::taken::{Case, Taken};
use super::wire::WIRES;
use crate::plot::{self, Bars, Panel};

/// Part of the file's name, title, and the value drawn.
type Figure = (&'static str, &'static str, fn(&Case) -> Option<f64>);

const FIGURES: [Figure; 2] = [
    (
        "seconds",
        "Seconds, until both ends have ended",
        Case::seconds,
    ),
    ("cpu", "CPU of both ends, seconds for a gigabyte", |case| {
        case.median(|sample| sample.cpu_s_per_gb)
    }),
];

/// Writes the pictures; returns part of each file's name and its caption.
pub fn save(taken: &Taken, stem: &Path) -> Result<Vec<(String, String)>> {
    let mut pictures = Vec::new();
    for (part, title, value) in FIGURES {
        let bars = Bars {
            title: title.into(),
            names: PEERS
                .map(|peer| (peer.name().to_owned(), colour(peer)))
                .to_vec(),
            panels: panels(taken, value),
            is_logarithmic: true,
        };
        if !bars.panels.is_empty() {
            let path = PathBuf::from(format!("{}-{part}", stem.display()));
            plot::grouped(&path, &bars)?;
            pictures.push((part.into(), title.into()));
        }
    }
    Ok(pictures)
}

/// A panel for each kind of files, a group for each link, a bar for each peer.
fn panels(taken: &Taken, value: fn(&Case) -> Option<f64>) -> Vec<Panel> {
    let panel = |content: &'static str| {
        let groups = WIRES.iter().filter_map(|wire| {
            let cases = taken.of(wire.name, content);
            let values = PEERS.map(|peer| {
                let case = cases.iter().find(|case| case.peer == peer.name())?;
                value(case)
            });
            let is_any = values.iter().any(Option::is_some);
            is_any.then(|| (wire.name.to_owned(), values.to_vec()))
        });
        let groups: Vec<_> = groups.collect();
        (!groups.is_empty()).then(|| Panel {
            title: content.into(),
            groups,
        })
    };
    let contents = CONTENTS.into_iter().chain(SMALL);
    contents.filter_map(|content| panel(content.name)).collect()
}

fn colour(peer: Peer) -> RGBColor {
    match peer {
        Peer::Airdma => RGBColor(209, 73, 91),
        Peer::Scp => RGBColor(150, 90, 180),
        Peer::Rsync => RGBColor(200, 170, 60),
        Peer::Quic => RGBColor(46, 139, 87),
        Peer::Nc => RGBColor(27, 108, 168),
    }
}
