//! SIPp: calls of a telephone over UDP or TCP.

use std::collections::HashMap;

use airdma_lab::Listening;

use super::{Peer, Place, Plan, Reading, words};

const PORT: u16 = 5060;
/// Calls a second of a light load.
const CALLS_A_SECOND: u32 = 20;
/// The same while all clients of a measurement of memory come, and seconds until memory is read
/// once they are here.
const CLIENTS_A_SECOND: u64 = 1000;
const SETTLED_S: u64 = 3;

/// Time from INVITE to the first answer, in microseconds: median, and 99th percentile.
#[derive(Clone, Copy, Debug)]
pub struct Sipp {
    /// TCP; UDP otherwise.
    pub tcp: bool,
}

/// Memory of both ends for each of `x` clients in a call, in bytes: processes, and the kernel's
/// sockets.
#[derive(Clone, Copy, Debug)]
pub struct SippMemory {
    /// TCP; UDP otherwise.
    pub tcp: bool,
}

impl Peer for Sipp {
    fn programs(&self) -> Vec<&'static str> {
        vec!["sipp"]
    }

    fn plan(&self, place: &Place, _: u64) -> Plan {
        let calls = CALLS_A_SECOND * place.seconds;
        let client = format!(
            "cd {} && rm -f uac_*_shortmessages.log; {} -r {CALLS_A_SECOND} -m {calls} -trace_shortmsg \
             > sipp.out 2>&1 && cat uac_*_shortmessages.log",
            place.folder,
            // The log lacks the first message of a call that waits for its connection.
            caller(place, if self.tcp { "t1" } else { "un" })
        );
        plan(place, self.tcp, &client)
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        read(client)
    }
}

impl Peer for SippMemory {
    fn programs(&self) -> Vec<&'static str> {
        vec!["sipp"]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let seconds = x / CLIENTS_A_SECOND + SETTLED_S;
        let slabs = "awk '$1 ~ /^(UDP|TCP|sock_inode_cache|filp)$/ { all += $2 * $4 } END { print all }' /proc/slabinfo";
        // Calls last until the memory is read.
        let client = format!(
            "cd {} && ulimit -n 20000 && before=$({slabs}) && \
             {{ {} -r {CLIENTS_A_SECOND} -m {x} -l {x} -d {}000 > sipp.out 2>&1 & }} && \
             sleep {seconds} && after=$({slabs}) && \
             sockets=$(ls /proc/$!/fd | wc -l) && \
             pss=$(cat /proc/$!/smaps_rollup /proc/$(cat uas.pid)/smaps_rollup | awk '/^Pss:/ {{ all += $2 }} END {{ print all }}') && \
             kill -9 $! && echo \"sockets $sockets pss_kib $pss slabs $((after - before))\"",
            place.folder,
            caller(place, if self.tcp { "tn" } else { "un" }),
            seconds + 30,
        );
        plan(place, self.tcp, &client)
    }

    fn read(&self, _: &str, client: &str, x: u64) -> Option<Reading> {
        let said: Vec<&str> = client.split_ascii_whitespace().collect();
        let ["sockets", sockets, "pss_kib", pss, "slabs", slabs] = said[..] else {
            return None;
        };
        let number = |text: &str| text.parse::<f64>().ok();
        // Where clients are missing, the memory is that of fewer.
        (number(sockets)? >= x as f64).then_some(())?;
        Some(Reading {
            value: (number(pss)? * 1024.0 + number(slabs)?) / x as f64,
            ..Reading::default()
        })
    }
}

fn plan(place: &Place, tcp: bool, client: &str) -> Plan {
    let transport = if tcp { "t1" } else { "u1" };
    let server = format!(
        "ulimit -n 20000; echo $$ > {}/uas.pid; exec sipp -sn uas -i {} -p {PORT} -t {transport} -nostdin -max_socket 15000",
        place.folder, place.server
    );
    Plan {
        server: Some(words(["sh", "-c", &server])),
        listening: if tcp {
            Listening::Tcp(PORT)
        } else {
            Listening::Udp(PORT)
        },
        stays: true,
        client: words(["sh", "-c", client]),
    }
}

/// The command of the calling end, with SIPp's word for the transport: `t` or `u`, with a socket
/// for each call (`n`) or one for all.
fn caller(place: &Place, transport: &str) -> String {
    format!(
        "sipp -sn uac {}:{PORT} -i {} -t {transport} -nostdin -max_socket 15000",
        place.server, place.client
    )
}

/// Lines of a log of messages: times, `S` or `R`, the call, its `CSeq`, the first line of the
/// message; tabs between them.
fn read(log: &str) -> Option<Reading> {
    let mut asked: HashMap<&str, f64> = HashMap::new();
    let mut times_us = Vec::new();
    for line in log.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        let Some(at) = cells.iter().position(|cell| matches!(*cell, "S" | "R")) else {
            continue;
        };
        let (Some(time), Some(call), Some(first)) = (
            cells.get(at.wrapping_sub(1)),
            cells.get(at + 1),
            cells.last(),
        ) else {
            continue;
        };
        let time: f64 = time.parse().ok()?;
        if cells[at] == "S" && first.starts_with("INVITE ") {
            asked.insert(call, time);
        } else if cells[at] == "R" && first.starts_with("SIP/2.0 180") {
            times_us.extend(asked.remove(call).map(|asked| (time - asked) * 1e6));
        }
    }
    times_us.sort_by(f64::total_cmp);
    let at = |share: f64| times_us.get(((times_us.len() as f64 - 1.0) * share).round() as usize);
    Some(Reading {
        value: *at(0.5)?,
        p99: at(0.99).copied(),
        ..Reading::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_from_the_call_to_the_first_answer() {
        let said = include_str!("samples/sipp.txt");
        let reading = Sipp { tcp: false }.read("", said, 1).unwrap();
        assert_eq!(
            (reading.value.round(), reading.p99.map(f64::round)),
            (212.0, Some(212.0))
        );
        assert_eq!(Sipp { tcp: true }.read("", "no call", 1), None);
    }

    #[test]
    fn memory_of_each_client() {
        let peer = SippMemory { tcp: true };
        let said = "sockets 1007 pss_kib 30000 slabs 4096000\n";
        let reading = peer.read("", said, 1000).unwrap();
        assert_eq!(reading.value, 30_720.0 + 4096.0);
        // Some clients are not there.
        assert_eq!(peer.read("", said, 2000), None);
        assert_eq!(peer.read("", "sockets", 1000), None);
    }
}
