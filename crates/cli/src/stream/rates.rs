//! Rates and latencies, by device and together.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Interval of reports.
pub const EVERY: Duration = Duration::from_secs(1);

/// Frames since the last report.
pub struct Rates {
    since: Instant,
    devices: BTreeMap<u32, Device>,
}

#[derive(Default)]
struct Device {
    frames: u64,
    bytes: u64,
    /// From capture to arrival, in nanoseconds.
    latencies: Vec<u64>,
}

impl Rates {
    pub fn new() -> Rates {
        Rates {
            since: Instant::now(),
            devices: BTreeMap::new(),
        }
    }

    /// A frame that was captured and has arrived at these times, by clocks that may differ.
    pub fn note(&mut self, device: u32, bytes: usize, (captured, arrived): (u64, u64)) {
        self.count(device, 1, bytes as u64);
        if captured != 0 {
            let device = self.devices.entry(device).or_default();
            device.latencies.push(arrived.saturating_sub(captured));
        }
    }

    /// Frames whose latency is not known.
    pub fn count(&mut self, device: u32, frames: u64, bytes: u64) {
        let device = self.devices.entry(device).or_default();
        device.frames += frames;
        device.bytes += bytes;
    }

    pub fn is_due(&self) -> bool {
        self.since.elapsed() >= EVERY
    }

    /// The report since the last one: a line for people, and an object for programs. `counts` has
    /// more of each device.
    pub fn report(&mut self, counts: &BTreeMap<u32, Value>) -> (String, Value) {
        let seconds = self.since.elapsed().as_secs_f64();
        self.since = Instant::now();
        let mut devices = std::mem::take(&mut self.devices);
        let (mut frames, mut bytes, mut all) = (0, 0, Vec::new());
        let mut objects = Vec::new();
        for (number, more) in counts {
            let device = devices.remove(number).unwrap_or_default();
            frames += device.frames;
            bytes += device.bytes;
            all.extend_from_slice(&device.latencies);
            let mut object = json!({
                "device": number,
                "frames_per_second": device.frames as f64 / seconds,
                "bits_per_second": 8.0 * device.bytes as f64 / seconds,
                "latency_ms": latency(device.latencies),
            });
            if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
                object.extend(more.clone());
            }
            objects.push(object);
        }
        let latency = latency(all);
        let shown = match (latency["p50"].as_f64(), latency["p99"].as_f64()) {
            (Some(p50), Some(p99)) => format!(", latency {p50:.1} ms (p99 {p99:.1})"),
            _ => String::new(),
        };
        let line = format!(
            "{} devices: {:.1} frames/s, {:.1} Mb/s{shown}",
            counts.len(),
            frames as f64 / seconds,
            8e-6 * bytes as f64 / seconds,
        );
        let object = json!({"event": "rates", "seconds": seconds, "devices": objects});
        (line, object)
    }
}

/// Median, 99th percentile and maximum, in milliseconds.
fn latency(mut nanoseconds: Vec<u64>) -> Value {
    nanoseconds.sort_unstable();
    let Some(last) = nanoseconds.len().checked_sub(1) else {
        return Value::Null;
    };
    let at = |percent: usize| nanoseconds[last * percent / 100] as f64 / 1e6;
    json!({"p50": at(50), "p99": at(99), "max": at(100)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_samples() {
        let ms = |ms: u64| ms * 1_000_000;
        assert_eq!(latency(Vec::new()), Value::Null);
        let all = latency((0..=100).rev().map(ms).collect());
        assert_eq!(all, json!({"p50": 50.0, "p99": 99.0, "max": 100.0}));
        let mut rates = Rates::new();
        rates.note(1, 10, (ms(5), ms(7)));
        let counts = BTreeMap::from([(1, json!({"missing": 3}))]);
        let (line, object) = rates.report(&counts);
        assert!(line.contains("latency 2.0 ms"), "{line}");
        assert_eq!(object["devices"][0]["missing"], 3);
        assert_eq!(object["devices"][0]["latency_ms"]["max"], 2.0);
    }
}
