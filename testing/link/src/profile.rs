//! Properties of a link, as users write them: a TOML file. Those of the usual radios come with
//! airdma.

use std::fs;
use std::path::Path;
use std::time::Duration;

use airdma_sim::wifi::phy::mpdu_bytes;
use airdma_sim::wifi::traffic::PACKET_BYTES;
use airdma_sim::wifi::{Access, Fading, Phy, Profile as Mac, Standard, errors};
use serde::Deserialize;
use toml::Spanned;

use crate::error::LinkError;

/// A link between two hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Radio, MAC, queue and fading, as the model has them.
    pub mac: Mac,
    /// Default SNR between the hosts, in dB.
    pub snr_db: f64,
    /// SNR by distance.
    pub path_loss: PathLoss,
    /// Traffic of each of the other stations.
    pub others: Others,
}

/// Log-distance path loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathLoss {
    /// Transmit power, antennas included, in dBm.
    pub transmit_dbm: f64,
    /// Loss over the first metre, in dB.
    pub at_1m_db: f64,
    /// Exponent of path loss: 2 in free space, 3 to 4 through walls.
    pub exponent: f64,
}

/// Another station: bursts of frames, exponential in length, and pauses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Others {
    /// Length of its frames.
    pub ppdu: Duration,
    /// Mean length of a burst.
    pub on: Duration,
    /// Mean length of a pause.
    pub off: Duration,
}

/// Those that come with airdma: name and text.
const INCLUDED: [(&str, &str); 6] = [
    ("wifi4-40", include_str!("../profiles/wifi4-40.toml")),
    ("wifi5-80", include_str!("../profiles/wifi5-80.toml")),
    ("wifi5-160", include_str!("../profiles/wifi5-160.toml")),
    ("wifi6-80", include_str!("../profiles/wifi6-80.toml")),
    ("wifi6-160", include_str!("../profiles/wifi6-160.toml")),
    ("wifi7-320", include_str!("../profiles/wifi7-320.toml")),
];

impl Profile {
    /// Names of those that come with airdma.
    pub fn names() -> impl Iterator<Item = &'static str> {
        INCLUDED.iter().map(|(name, _)| *name)
    }

    /// The text of one that comes with airdma: a good beginning of one's own.
    pub fn text(name: &str) -> Option<&'static str> {
        let found = INCLUDED.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| *text)
    }

    /// The one of this name, or in this file.
    ///
    /// # Errors
    ///
    /// If there is none, or none can be like this: which line, and what would be right.
    pub fn find(name: &str) -> Result<Profile, LinkError> {
        if let Some(text) = Profile::text(name) {
            return Profile::parse(text, name);
        }
        if !name.contains('/') && !name.ends_with(".toml") {
            let names: Vec<&str> = Profile::names().collect();
            return Err(LinkError::Asked(format!(
                "no profile is called {name}: there are {}, and files of your own (FILE.toml)",
                names.join(", ")
            )));
        }
        let text = fs::read_to_string(Path::new(name))
            .map_err(|error| LinkError::Asked(format!("reading the profile {name}: {error}")))?;
        Profile::parse(&text, name)
    }

    /// Reads a profile; `file` is what messages call it.
    ///
    /// # Errors
    ///
    /// As of [`Profile::find`].
    pub fn parse(text: &str, file: &str) -> Result<Profile, LinkError> {
        let complain = |begins: usize, what: String| LinkError::Text {
            file: file.to_owned(),
            line: line_of(text, begins),
            what,
        };
        let written: Written = toml::from_str(text).map_err(|error| {
            let begins = error.span().map_or(0, |span| span.start);
            complain(begins, error.message().trim().to_owned())
        })?;
        written
            .checked()
            .map_err(|wrong| complain(wrong.begins, wrong.what))
    }

    /// The SNR at a distance, in dB.
    pub fn snr_at_db(&self, distance_m: f64) -> f64 {
        let PathLoss {
            transmit_dbm,
            at_1m_db,
            exponent,
        } = self.path_loss;
        let loss_db = at_1m_db + 10.0 * exponent * distance_m.max(0.1).log10();
        transmit_dbm - loss_db - self.mac.noise_dbm()
    }

    /// UDP goodput of one saturated direction at this SNR without fading, with the best scheme, in
    /// Mb/s.
    pub fn goodput_mbit(&self, snr_db: f64) -> f64 {
        let schemes = 0..=self.mac.phy.mcs_max();
        let goodputs = schemes.map(|mcs| {
            let arrived = 1.0 - errors::loss(snr_db, mcs, mpdu_bytes(PACKET_BYTES));
            arrived * self.mac.ideal_goodput_mbit(mcs)
        });
        goodputs.fold(0.0, f64::max)
    }

    /// The SNR that gives this goodput, or else the most that there is.
    pub(crate) fn snr_for_mbit(&self, mbit: f64) -> Result<f64, f64> {
        let (mut low, mut high) = (-30.0, 60.0);
        let most = self.goodput_mbit(high);
        if mbit > most {
            return Err(most);
        }
        while high - low > 0.01 {
            let middle = (low + high) / 2.0;
            if self.goodput_mbit(middle) < mbit {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(high)
    }
}

/// The line, counted from 1, in which this byte of a text is.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    1 + before.filter(|byte| **byte == b'\n').count()
}

struct Wrong {
    begins: usize,
    what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    radio: Spanned<Radio>,
    mac: MacLimits,
    access: AccessRules,
    queue: Queue,
    channel: Channel,
    others: OthersWritten,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Radio {
    standard: Spanned<String>,
    width_mhz: Spanned<u16>,
    streams: Spanned<u8>,
    guard_ns: Spanned<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MacLimits {
    window: Spanned<u16>,
    ampdu_bytes_max: Spanned<u32>,
    ppdu_us_max: Spanned<u64>,
    attempts_max: Spanned<u8>,
    lifetime_ms: Spanned<u64>,
    aggregates_early: bool,
    rts_above_bytes: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessRules {
    aifsn: Spanned<u8>,
    cw_min: Spanned<u16>,
    cw_max: Spanned<u16>,
    txop_us: Spanned<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Queue {
    packets_max: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Channel {
    snr_db: Spanned<f64>,
    fading_sigma_db: Spanned<f64>,
    fading_coherence_ms: Spanned<u64>,
    transmit_dbm: Spanned<f64>,
    path_loss_1m_db: Spanned<f64>,
    path_loss_exponent: Spanned<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OthersWritten {
    ppdu_us: Spanned<u64>,
    on_ms: Spanned<u64>,
    off_ms: Spanned<u64>,
}

/// The value, if it is between these.
fn within<T: Copy + PartialOrd + std::fmt::Display>(
    value: &Spanned<T>,
    key: &str,
    least: T,
    most: T,
) -> Result<T, Wrong> {
    let found = *value.get_ref();
    // Not the other way round: a NaN is not within anything.
    if found >= least && found <= most {
        return Ok(found);
    }
    Err(Wrong {
        begins: value.span().start,
        what: format!("{key} is {found}; it must be between {least} and {most}"),
    })
}

impl Written {
    fn checked(&self) -> Result<Profile, Wrong> {
        let phy = self.radio.get_ref().checked()?;
        let (window_max, ampdu_bytes_max) = phy.standard.aggregate_max();
        let mac = &self.mac;
        let channel = &self.channel;
        let checked = Mac {
            // Once for each profile that a process reads.
            name: Box::leak(self.name.clone().into_boxed_str()),
            phy,
            window: within(&mac.window, "window", 1, window_max)?,
            ampdu_bytes_max: within(&mac.ampdu_bytes_max, "ampdu_bytes_max", 1, ampdu_bytes_max)?,
            ppdu_ns_max: 1_000 * within(&mac.ppdu_us_max, "ppdu_us_max", 100, 5_484)?,
            access: self.access.checked()?,
            attempts_max: within(&mac.attempts_max, "attempts_max", 1, 255)?,
            lifetime: Duration::from_millis(within(&mac.lifetime_ms, "lifetime_ms", 1, 60_000)?),
            queue_packets_max: within(&self.queue.packets_max, "packets_max", 1, 1_000_000)?
                as usize,
            rts_above_bytes: mac.rts_above_bytes,
            aggregates_early: mac.aggregates_early,
            fading: Fading {
                sigma_db: within(&channel.fading_sigma_db, "fading_sigma_db", 0.0, 20.0)?,
                coherence: Duration::from_millis(within(
                    &channel.fading_coherence_ms,
                    "fading_coherence_ms",
                    1,
                    60_000,
                )?),
            },
            interference: None,
        };
        checked.check().map_err(|error| Wrong {
            begins: self.radio.span().start,
            what: error.to_string(),
        })?;
        Ok(Profile {
            mac: checked,
            snr_db: within(&channel.snr_db, "snr_db", -30.0, 100.0)?,
            path_loss: PathLoss {
                transmit_dbm: within(&channel.transmit_dbm, "transmit_dbm", -30.0, 40.0)?,
                at_1m_db: within(&channel.path_loss_1m_db, "path_loss_1m_db", 0.0, 120.0)?,
                exponent: within(&channel.path_loss_exponent, "path_loss_exponent", 1.0, 8.0)?,
            },
            others: self.others.checked()?,
        })
    }
}

impl Radio {
    fn checked(&self) -> Result<Phy, Wrong> {
        let wrong = |begins: usize, what: String| Err(Wrong { begins, what });
        let standard = match self.standard.get_ref().as_str() {
            "ht" => Standard::Ht,
            "vht" => Standard::Vht,
            "he" => Standard::He,
            "eht" => Standard::Eht,
            other => {
                return wrong(
                    self.standard.span().start,
                    format!(
                        "standard is {other:?}; it must be \"ht\" (Wi-Fi 4), \"vht\" (5), \"he\" (6) or \"eht\" (7)"
                    ),
                );
            }
        };
        let guards: &[u64] = match standard {
            Standard::Ht | Standard::Vht => &[400, 800],
            Standard::He | Standard::Eht => &[800, 1_600, 3_200],
        };
        let guard_ns = *self.guard_ns.get_ref();
        if !guards.contains(&guard_ns) {
            return wrong(
                self.guard_ns.span().start,
                format!("guard_ns is {guard_ns}; this standard has {guards:?}"),
            );
        }
        let phy = Phy {
            standard,
            width_mhz: *self.width_mhz.get_ref(),
            streams: within(&self.streams, "streams", 1, 16)?,
            guard_ns,
        };
        if phy.data_subcarriers() == 0 {
            return wrong(
                self.width_mhz.span().start,
                format!(
                    "width_mhz is {}; this standard has no such channel (ht: 20, 40; vht, he: to 160; eht: to 320)",
                    phy.width_mhz
                ),
            );
        }
        Ok(phy)
    }
}

impl AccessRules {
    fn checked(&self) -> Result<Access, Wrong> {
        let cw_min = within(&self.cw_min, "cw_min", 0, 32_767)?;
        Ok(Access {
            aifsn: within(&self.aifsn, "aifsn", 1, 15)?,
            cw_min,
            cw_max: within(&self.cw_max, "cw_max", cw_min, 32_767)?,
            txop: Duration::from_micros(within(&self.txop_us, "txop_us", 0, 8_160)?),
        })
    }
}

impl OthersWritten {
    fn checked(&self) -> Result<Others, Wrong> {
        let ppdu_us = within(&self.ppdu_us, "ppdu_us", 1, 5_484)?;
        Ok(Others {
            ppdu: Duration::from_micros(ppdu_us),
            on: Duration::from_millis(within(&self.on_ms, "on_ms", 1, 3_600_000)?),
            off: Duration::from_millis(within(&self.off_ms, "off_ms", 1, 3_600_000)?),
        })
    }
}

#[cfg(test)]
mod tests;
