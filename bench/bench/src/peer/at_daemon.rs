//! A program whose devices are a daemon's (`airdma daemon`), and one that is stopped meanwhile.

use super::perftest::PORT;
use super::under::behind;
use super::{Bandwidth, Peer, Place, Plan, Reading};

/// A program with a daemon at each end.
#[derive(Clone, Copy, Debug)]
pub struct AtDaemon<P>(pub P);

/// The words before a program that `airdma bench-end at-daemon` runs at one end.
fn at_end(place: &Place, end: &str, more: &[String]) -> Vec<String> {
    let socket = format!("{}/{end}.socket", place.folder);
    let first = [&place.airdma, "bench-end", "at-daemon", "--socket", &socket];
    let first: Vec<String> = first.map(str::to_owned).into();
    [&first, more, &["--".to_owned()]].concat()
}

impl<P: Peer> Peer for AtDaemon<P> {
    fn programs(&self) -> Vec<&'static str> {
        self.0.programs()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let plan = self.0.plan(place, x);
        let server = |command| behind(&at_end(place, "server", &[]), command);
        Plan {
            server: plan.server.map(server),
            client: behind(&at_end(place, "client", &[]), plan.client),
            ..plan
        }
    }

    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading> {
        self.0.read(server, client, x)
    }
}

/// WRITEs to a program with a daemon, for `x` seconds and some more; the program is stopped for `x`
/// of them, or not at all.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// Bytes of each WRITE.
    pub bytes: u64,
    /// Whether it is stopped.
    pub stops: bool,
}

/// Seconds of a run beside those of the stop: the programs agree before and after it.
const BESIDE_S: u32 = 3;

impl Stopped {
    fn program() -> Bandwidth {
        Bandwidth::of("ib_write_bw")
    }
}

impl Peer for Stopped {
    fn programs(&self) -> Vec<&'static str> {
        Self::program().programs()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let stopped_s = u32::try_from(x).unwrap_or(u32::MAX);
        let longer = Place {
            seconds: stopped_s.saturating_add(BESIDE_S),
            ..place.clone()
        };
        let plan = Self::program().plan(&longer, self.bytes);
        let stop = [
            "--stop-port".to_owned(),
            PORT.to_string(),
            "--stop-for".to_owned(),
            x.to_string(),
        ];
        let stop = if self.stops { &stop[..] } else { &[] };
        let server = |command| behind(&at_end(place, "server", stop), command);
        Plan {
            server: plan.server.map(server),
            ..plan
        }
    }

    fn read(&self, server: &str, client: &str, _: u64) -> Option<Reading> {
        Self::program().read(server, client, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_a_daemon() {
        let plan = AtDaemon(Bandwidth::of("ib_send_bw")).plan(&Place::made_up(), 65_536);
        for (command, end) in [(plan.server.unwrap(), "server"), (plan.client, "client")] {
            let expected = format!(
                "airdma bench-end at-daemon --socket /tmp/f/{end}.socket -- airdma run -- ib_send_bw"
            );
            assert!(command.join(" ").starts_with(&expected), "{command:?}");
        }
    }

    #[test]
    fn the_target_alone_is_stopped_and_the_run_is_longer() {
        let stopped = |stops| {
            let bytes = 65_536;
            Stopped { bytes, stops }.plan(&Place::made_up(), 10)
        };
        let plan = stopped(true);
        let server = plan.server.unwrap().join(" ");
        assert!(
            server.contains("--stop-port 18515 --stop-for 10 -- "),
            "{server}"
        );
        assert!(
            plan.client.join(" ").contains("-D 13 "),
            "{:?}",
            plan.client
        );
        assert!(
            !stopped(false)
                .server
                .unwrap()
                .join(" ")
                .contains("stop-for")
        );
    }
}
