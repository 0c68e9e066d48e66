//! wrk, and nginx with one object.

use std::fs;
use std::io;
use std::path::Path;

use airdma_lab::Listening;

use super::{Peer, Place, Plan, Reading, words};

const PORT: u16 = 8080;
const CONNECTIONS: &str = "16";

/// Thousands of objects of `x` bytes a second; the 99th percentile in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Web;

impl Peer for Web {
    fn programs(&self) -> Vec<&'static str> {
        vec!["nginx", "wrk"]
    }

    fn prepare(&self, place: &Place, x: u64) -> io::Result<()> {
        let folder = Path::new(&place.folder);
        fs::write(folder.join("nginx.conf"), configuration(&place.folder))?;
        fs::write(
            folder.join("object"),
            vec![b'x'; usize::try_from(x).unwrap_or(0)],
        )
    }

    fn plan(&self, place: &Place, _: u64) -> Plan {
        let file = format!("{}/nginx.conf", place.folder);
        let seconds = format!("{}s", place.seconds);
        let object = format!("http://{}:{PORT}/object", place.server);
        let mut client = words(["wrk", "-t", "1", "-c", CONNECTIONS, "-d", &seconds]);
        client.extend(words(["--latency", &object]));
        Plan {
            server: Some(words(["nginx", "-p", &place.folder, "-c", &file])),
            listening: Listening::Tcp(PORT),
            stays: true,
            client,
        }
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        read(client)
    }
}

/// One process, whose files are all in one folder.
fn configuration(folder: &str) -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|what| format!("{what}_temp_path {folder}/{what};\n"));
    format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\naccess_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;\n{}\
         server {{ listen {PORT}; root {folder}; }}\n}}\n",
        temporary.concat()
    )
}

/// "Requests/sec:  12345.67" and "    99%    1.23ms".
fn read(client: &str) -> Option<Reading> {
    let after = |first: &str| {
        let mut lines = client.lines().map(str::trim_start);
        Some(lines.find_map(|line| line.strip_prefix(first))?.trim())
    };
    // wrk counts on where nothing answers, or with an error.
    if client.contains("Non-2xx") || client.contains("Socket errors") {
        return None;
    }
    Some(Reading {
        value: after("Requests/sec:")?.parse::<f64>().ok()? / 1e3,
        p99: after("99%").and_then(microseconds),
        ..Reading::default()
    })
}

/// "1.23ms"; also us and s.
fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    units.into_iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number * factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_a_second_and_the_99th_percentile() {
        let said = include_str!("samples/wrk.txt");
        let reading = Web.read("", said, 1024).unwrap();
        assert_eq!((reading.value, reading.p99), (14.27585, Some(9930.0)));
        let failed = format!("{said}\n  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        assert_eq!(Web.read("", &failed, 1024), None);
        assert_eq!(Web.read("", "unable to connect", 1024), None);
    }

    #[test]
    fn units_of_time() {
        let read = ["850.00us", "1.50ms", "2.00s", "1.2m", ""].map(microseconds);
        assert_eq!(read, [Some(850.0), Some(1500.0), Some(2e6), None, None]);
    }
}
