//! airdma through perftest: `ib_{write,send,read}_{bw,lat}`.

use std::collections::HashMap;

use airdma_lab::Listening;

use super::{Peer, Place, Plan, Reading, on_airdma};

/// TCP port of the server.
pub const PORT: u16 = 18515;

/// Parses perftest's tables, one map a line.
///
/// Columns are `#bytes`, `#iterations`, `BW average[Gb/sec]` (with --report_gbits),
/// `MsgRate[Mpps]`; `t_typical[usec]` (the median), `99% percentile[usec]`. Empty if the program
/// printed no table.
pub fn parse(output: &str) -> Vec<HashMap<String, f64>> {
    let mut names: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for line in output.lines() {
        if line.trim_start().starts_with("#bytes") {
            names = titles(line);
            continue;
        }
        let values: Option<Vec<f64>> = line
            .split_ascii_whitespace()
            .map(|word| word.parse().ok())
            .collect();
        if let Some(values) = values.filter(|values| values.len() > 2 && !names.is_empty()) {
            rows.push(names.iter().cloned().zip(values).collect());
        }
    }
    rows
}

/// Titles hold single blanks ("BW average[Gb/sec]") and end with a bracket, or are one word with a
/// #.
fn titles(line: &str) -> Vec<String> {
    let mut titles = Vec::new();
    let mut title = String::new();
    for word in line.split_ascii_whitespace() {
        if !title.is_empty() {
            title.push(' ');
        }
        title.push_str(word);
        if word.starts_with('#') || word.ends_with(']') {
            titles.push(std::mem::take(&mut title));
        }
    }
    titles
}

fn plan(place: &Place, command: Vec<String>) -> Plan {
    let mut client = command.clone();
    client.push(place.server.clone());
    Plan {
        server: Some(on_airdma(place, command)),
        listening: Listening::Tcp(PORT),
        stays: false,
        client: on_airdma(place, client),
    }
}

/// Bandwidth in Gb/s, or messages in millions a second.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// "ib_write_bw", "ib_send_bw" or "ib_read_bw".
    pub program: &'static str,
    /// Sleep until a completion comes instead of polling; perftest supports it for SEND only.
    pub events: bool,
    /// Requests posted together.
    pub batch: u32,
    /// The result is millions of messages a second.
    pub rate: bool,
}

/// Payload of a run with events, per second of its duration.
const EVENTS_BYTES: u64 = 1_250_000_000;

impl Bandwidth {
    /// perftest's defaults: it polls, and posts one request at a time.
    pub fn of(program: &'static str) -> Bandwidth {
        Bandwidth {
            program,
            events: false,
            batch: 1,
            rate: false,
        }
    }
}

impl Peer for Bandwidth {
    fn programs(&self) -> Vec<&'static str> {
        vec![self.program]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let mut command = vec![
            self.program.to_owned(),
            "-F".into(),
            "--report_gbits".into(),
            "-s".into(),
            x.to_string(),
        ];
        if self.events {
            // With events perftest counts messages, not time: the count takes about a second at 10
            // Gb/s.
            let messages = EVENTS_BYTES * u64::from(place.seconds) / x;
            let messages = messages.clamp(1000, 1_000_000).to_string();
            command.extend(["-e".into(), "-N".into(), "-n".into(), messages]);
        } else {
            let seconds = place.seconds.to_string();
            command.extend(["-D".into(), seconds, "-f".into(), "0".into()]);
        }
        if self.batch > 1 {
            command.extend(["-l".into(), self.batch.to_string()]);
        }
        plan(place, command)
    }

    fn read(&self, _: &str, client: &str, x: u64) -> Option<Reading> {
        let rows = parse(client);
        let row = rows.first()?;
        let rate = *row.get("MsgRate[Mpps]")?;
        // Below 1 Gb/s two digits are too few: the message rate has six.
        let gbps = rate * x as f64 * 8.0 / 1e3;
        Some(Reading {
            value: if self.rate { rate } else { gbps },
            moved_bytes: Some(*row.get("#iterations")? as u64 * x),
            ..Reading::default()
        })
    }
}

/// Latency in microseconds: half a round trip; a whole one for READ.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// "ib_write_lat", "ib_send_lat" or "ib_read_lat".
    pub program: &'static str,
    /// Most rounds of a run.
    pub rounds_max: u64,
}

impl Latency {
    /// As many rounds as take most of the run's time.
    pub const fn of(program: &'static str) -> Latency {
        Latency {
            program,
            rounds_max: 50_000,
        }
    }
}

impl Peer for Latency {
    fn programs(&self) -> Vec<&'static str> {
        vec![self.program]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        // perftest reports percentiles only for a given number of rounds. An estimate of the round
        // trip suffices to give every size about the same time.
        let budget_us = 600_000 * u64::from(place.seconds);
        let rounds = (budget_us / (30 + x / 250)).clamp(200, self.rounds_max);
        let command = [
            self.program,
            "-F",
            "-n",
            &rounds.to_string(),
            "-s",
            &x.to_string(),
        ];
        plan(place, super::words(command))
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        let rows = parse(client);
        let row = rows.first()?;
        Some(Reading {
            value: *row.get("t_typical[usec]")?,
            p99: row.get("99% percentile[usec]").copied(),
            ..Reading::default()
        })
    }
}

/// Bandwidth in Gb/s over `x` queue pairs that share one load.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    /// Bytes of each message.
    pub bytes: u64,
    /// Messages in flight, all queue pairs together; one each if there are more.
    pub outstanding: u64,
}

/// Messages of a run per second of its duration, all queue pairs together.
const PAIRS_MESSAGES: u64 = 400_000;

impl Peer for Pairs {
    fn programs(&self) -> Vec<&'static str> {
        vec!["ib_write_bw"]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let depth = (self.outstanding / x).max(1).to_string();
        // perftest requires five messages of each queue pair.
        let messages = (PAIRS_MESSAGES * u64::from(place.seconds) / x).max(5);
        let (bytes, messages, x) = (self.bytes.to_string(), messages.to_string(), x.to_string());
        let command = [
            "ib_write_bw",
            "-F",
            "--report_gbits",
            "-N",
            "-s",
            &bytes,
            "-q",
            &x,
            "-t",
            &depth,
            "-Q",
            "1",
            "-n",
            &messages,
        ];
        plan(place, super::words(command))
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        let rows = parse(client);
        let row = rows.first()?;
        let rate = *row.get("MsgRate[Mpps]")?;
        Some(Reading {
            value: rate * self.bytes as f64 * 8.0 / 1e3,
            moved_bytes: Some(*row.get("#iterations")? as u64 * self.bytes),
            ..Reading::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str = include_str!("samples/ib_write_bw.txt");
    const LATENCY: &str = include_str!("samples/ib_send_lat.txt");

    #[test]
    fn bandwidth_comes_from_the_message_rate() {
        let peer = Bandwidth::of("ib_write_bw");
        let reading = peer.read("", BANDWIDTH, 65536).unwrap();
        assert!((reading.value - 0.077954 * 65.536 * 8.0).abs() < 1e-9);
        assert_eq!(reading.moved_bytes, Some(100 * 65536));
        let rate = Bandwidth { rate: true, ..peer };
        assert_eq!(rate.read("", BANDWIDTH, 65536).unwrap().value, 0.077954);
    }

    #[test]
    fn latency_is_the_median_and_the_99th_percentile() {
        let peer = Latency::of("ib_send_lat");
        let reading = peer.read("", LATENCY, 64).unwrap();
        assert_eq!((reading.value, reading.p99), (8.02, Some(11.50)));
    }

    #[test]
    fn rows_have_each_title_of_the_table() {
        let rows = parse(BANDWIDTH);
        let row = rows.iter().find(|row| row["#bytes"] == 65536.0).unwrap();
        assert_eq!(row["BW average[Gb/sec]"], 40.87);
        assert_eq!(row["MsgRate[Mpps]"], 0.077954);
        assert_eq!(parse(LATENCY)[0]["99.9% percentile[usec]"], 33.10);
        assert_eq!(
            crate::peer::read_output("perftest", "no table"),
            Some(serde_json::json!([]))
        );
    }

    #[test]
    fn output_without_a_table_is_no_result() {
        let said = " Unable to init the socket connection\n";
        assert_eq!(Bandwidth::of("ib_write_bw").read("", said, 64), None);
    }

    #[test]
    fn queue_pairs_share_one_load() {
        let place = Place {
            server: "10.77.0.2".into(),
            client: "10.77.0.1".into(),
            mtu: 1500,
            seconds: 1,
            airdma: "airdma".into(),
            folder: String::new(),
            secret: "secret".into(),
            core_pairs: None,
        };
        let peer = Pairs {
            bytes: 4096,
            outstanding: 512,
        };
        let depths = [(1, "512"), (16, "32"), (256, "2"), (16384, "1")];
        for (pairs, depth) in depths {
            let client = peer.plan(&place, pairs).client;
            let at = client.iter().position(|word| word == "-t").unwrap();
            assert_eq!(client[at + 1], depth, "{pairs}");
            assert_eq!(client.last().unwrap(), "10.77.0.2");
        }
    }
}
