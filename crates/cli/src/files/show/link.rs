//! Capacity of the link by the kernel: a cable's speed, or a radio's present bit rate.

use super::Side;
use airdma_radio::LinkView;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval of readings: a radio changes its rate more often than is readable.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub struct Link {
    side: Side,
    /// Directory of the interface in sysfs.
    described: PathBuf,
    view: Option<LinkView>,
    told: Option<(Instant, Option<f64>)>,
}

impl Link {
    pub fn of(interface: &str, side: Side) -> Self {
        let described = Path::new("/sys/class/net").join(interface);
        let index = number(&described.join("ifindex")).and_then(|index| u32::try_from(index).ok());
        Self {
            side,
            described,
            view: index.map(LinkView::open),
            told: None,
        }
    }

    /// `None` if the rate is unknown, as on an access point with several stations.
    pub fn bits_per_second(&mut self) -> Option<f64> {
        if let Some((when, told)) = self.told
            && when.elapsed() < ASK_EVERY
        {
            return told;
        }
        let told = self.radio().or_else(|| self.cable());
        self.told = Some((Instant::now(), told));
        told
    }

    fn radio(&mut self) -> Option<f64> {
        let link = self.view.as_mut()?.read(Instant::now());
        let stations = link.stations.value.as_ref().ok()?;
        let [station] = &stations[..] else {
            return None;
        };
        let rate = match self.side {
            Side::Sender => station.transmit,
            Side::Receiver => station.receive,
        };
        Some(f64::from(rate?.kbps) * 1e3)
    }

    fn cable(&self) -> Option<f64> {
        // -1, or an error, without a cable.
        let mbit = number(&self.described.join("speed")).filter(|mbit| *mbit > 0)?;
        Some(mbit as f64 * 1e6)
    }
}

fn number(file: &Path) -> Option<i64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_nobody_knows_has_no_rate() {
        assert_eq!(Link::of("nobody0", Side::Sender).bits_per_second(), None);
        assert_eq!(Link::of("lo", Side::Receiver).bits_per_second(), None);
    }
}
