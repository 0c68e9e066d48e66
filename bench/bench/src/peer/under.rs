//! Conditions of a program on airdma: its environment, and the cores of its ends.

use std::io;

use super::{Peer, Place, Plan, Reading};

/// A program on airdma hosts that agree on nothing and speak RoCEv2 alone, as towards a NIC.
#[derive(Clone, Copy, Debug)]
pub struct Plain<P>(pub P);

impl<P: Peer> Peer for Plain<P> {
    fn programs(&self) -> Vec<&'static str> {
        self.0.programs()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let plain = |command| behind(&["env", "AIRDMA_AIR=0"].map(str::to_owned), command);
        let plan = self.0.plan(place, x);
        Plan {
            server: plan.server.map(plain),
            client: plain(plan.client),
            ..plan
        }
    }

    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading> {
        self.0.read(server, client, x)
    }
}

/// A program of perftest that uses datagrams in place of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Unconnected<P>(pub P);

impl<P: Peer> Peer for Unconnected<P> {
    fn programs(&self) -> Vec<&'static str> {
        self.0.programs()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let datagrams =
            |command: Vec<String>| [command, ["-c", "UD"].map(str::to_owned).into()].concat();
        let plan = self.0.plan(place, x);
        Plan {
            server: plan.server.map(datagrams),
            client: datagrams(plan.client),
            ..plan
        }
    }

    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading> {
        self.0.read(server, client, x)
    }
}

/// A socket program under `airdma sockets`, at the ends that have it.
#[derive(Clone, Copy, Debug)]
pub struct Shimmed<P> {
    /// The program.
    pub program: P,
    /// Whether the server runs under it.
    pub server: bool,
    /// Whether the client does.
    pub client: bool,
}

impl<P: Peer> Peer for Shimmed<P> {
    fn programs(&self) -> Vec<&'static str> {
        self.program.programs()
    }

    fn prepare(&self, place: &Place, x: u64) -> io::Result<()> {
        self.program.prepare(place, x)
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let sockets = [&place.airdma, "sockets", "--udp", "--"].map(str::to_owned);
        let under = |is_under, command| match is_under {
            true => behind(&sockets, command),
            false => command,
        };
        let plan = self.program.plan(place, x);
        Plan {
            server: plan.server.map(|command| under(self.server, command)),
            client: under(self.client, plan.client),
            ..plan
        }
    }

    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading> {
        self.program.read(server, client, x)
    }
}

/// A program on airdma hosts that share a secret, which seals their connections.
#[derive(Clone, Copy, Debug)]
pub struct Sealed<P>(pub P);

impl<P: Peer> Peer for Sealed<P> {
    fn programs(&self) -> Vec<&'static str> {
        self.0.programs()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let variable = format!("AIRDMA_SECRET={}", place.secret);
        let sealed = |command| behind(&["env".into(), variable.clone()], command);
        let plan = self.0.plan(place, x);
        Plan {
            server: plan.server.map(sealed),
            client: sealed(plan.client),
            ..plan
        }
    }

    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading> {
        self.0.read(server, client, x)
    }
}

/// A program whose ends have a second core each: one for the thread that spins, one for airdma's
/// progress thread.
#[derive(Clone, Copy, Debug)]
pub struct SecondCore<P>(pub P);

/// Stands in lists of programs for a machine with two cores for each end.
pub const FOUR_CORES: &str = "four_cores";

impl<P: Peer> Peer for SecondCore<P> {
    fn programs(&self) -> Vec<&'static str> {
        let mut programs = self.0.programs();
        programs.extend([FOUR_CORES, "taskset"]);
        programs
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let plan = self.0.plan(place, x);
        let Some([client, server]) = &place.core_pairs else {
            return plan;
        };
        let on = |cores: &[usize; 2], command| {
            let cores = format!("{},{}", cores[0], cores[1]);
            behind(&["taskset".into(), "-c".into(), cores], command)
        };
        Plan {
            server: plan.server.map(|command| on(server, command)),
            client: on(client, plan.client),
            ..plan
        }
    }

    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading> {
        self.0.read(server, client, x)
    }
}

/// A command line with words before it.
pub fn behind(first: &[String], command: Vec<String>) -> Vec<String> {
    [first, &command].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Latency;

    const WRITE: Latency = Latency::of("ib_write_lat");

    fn ends(plan: &Plan) -> [String; 2] {
        let server = plan.server.as_ref().unwrap();
        [server, &plan.client].map(|command| command[..4].join(" "))
    }

    #[test]
    fn plain_ends_agree_on_nothing() {
        let plan = Plain(WRITE).plan(&Place::made_up(), 64);
        assert_eq!(ends(&plan), ["env AIRDMA_AIR=0 airdma run"; 2]);
        assert_eq!(Plain(WRITE).programs(), ["ib_write_lat"]);
    }

    #[test]
    fn the_library_is_at_the_ends_that_have_it() {
        let shimmed = |server, client| Shimmed {
            program: crate::peer::Iperf {
                algorithm: "cubic",
                no_delay_max: 0,
            },
            server,
            client,
        };
        let at = |server, client| {
            let plan = shimmed(server, client).plan(&Place::made_up(), 64);
            [plan.server.unwrap(), plan.client].map(|command| command[..2].join(" "))
        };
        assert_eq!(at(true, false), ["airdma sockets", "iperf3 -c"]);
        assert_eq!(at(false, true), ["iperf3 -s", "airdma sockets"]);
    }

    #[test]
    fn sealed_ends_share_a_secret() {
        let plan = Sealed(WRITE).plan(&Place::made_up(), 64);
        let expected = "env AIRDMA_SECRET=/tmp/secret airdma run";
        assert_eq!(ends(&plan), [expected; 2]);
    }

    #[test]
    fn each_end_has_cores_of_its_own() {
        let peer = SecondCore(WRITE);
        let plan = peer.plan(&Place::made_up(), 64);
        assert_eq!(
            ends(&plan),
            ["taskset -c 1,3 airdma", "taskset -c 0,2 airdma"]
        );
        assert!(peer.programs().contains(&FOUR_CORES));
    }
}
