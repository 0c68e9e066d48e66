//! `airdma devices --metrics`, as a scraper uses it.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A server that ends with the test.
struct Server(Child, String);

impl Server {
    fn start() -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_airdma"))
            .args(["devices", "--metrics", "127.0.0.1:0"])
            .env("AIRDMA_LOOPBACK", "1")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().strip_prefix("airdma: metrics at http://");
        let address = address.unwrap().strip_suffix("/metrics").unwrap();
        Server(child, address.to_owned())
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_family_comes_in_one_piece_and_the_text_has_an_end() {
    let answer = Server::start().ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"));
    assert!(head.contains(&format!("Content-Length: {}", body.len())));
    assert!(body.ends_with("# EOF\n"), "{body}");
    let (mut family, mut seen) = (String::new(), Vec::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap().to_owned();
            assert!(!seen.contains(&family), "{family} comes twice");
            seen.push(family.clone());
        } else if !line.starts_with('#') {
            assert!(line.starts_with(&family), "{line} in {family}");
            assert!(line.contains("{device=\"airdma_"), "{line}");
        }
    }
    let lo = "{device=\"airdma_lo\",port=\"1\"} ";
    for sample in [
        "node_infiniband_port_data_received_bytes_total",
        "node_infiniband_port_packets_transmitted_total",
        "airdma_retransmits_total",
        "airdma_drop_bad_icrc_total",
    ] {
        assert!(body.contains(&format!("\n{sample}{lo}")), "{sample}");
    }
    assert!(body.contains(&format!("\nnode_infiniband_state_id{lo}4\n")));
}

#[test]
fn what_is_no_scrape_is_refused_and_the_next_one_is_answered() {
    let server = Server::start();
    let status = |answer: String| answer.split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(status(server.ask("GET / HTTP/1.1\r\n\r\n")), "404");
    assert_eq!(status(server.ask("POST /metrics HTTP/1.1\r\n\r\n")), "405");
    assert_eq!(status(server.ask("\u{0}\u{1}\r\n\r\n")), "405");
    // One that says nothing, one that ends early, and one that never comes to an end.
    let silent = TcpStream::connect(&server.1).unwrap();
    let early = TcpStream::connect(&server.1).unwrap();
    early.shutdown(Shutdown::Write).unwrap();
    let mut endless = TcpStream::connect(&server.1).unwrap();
    let _ = endless.write_all(&[b'x'; 64 << 10]);
    assert_eq!(status(server.ask("GET /metrics HTTP/1.0\r\n\r\n")), "200");
    drop(silent);
}

#[test]
fn a_port_that_is_taken_is_an_error_with_another_address() {
    let owner = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = owner.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_airdma"))
        .args(["devices", "--metrics", &address])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&address) && said.contains("another program has the port"),
        "{said}"
    );
    assert!(said.contains("--metrics 127.0.0.1:"), "{said}");
}

#[test]
fn the_dashboard_asks_for_what_is_served_only() {
    let answer = Server::start().ask("GET /metrics HTTP/1.1\r\n\r\n");
    let dashboard = include_str!("../../../packaging/grafana/airdma.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|it| it["targets"].as_array().unwrap());
    let mut asked = 0;
    for target in targets {
        let expression = target["expr"].as_str().unwrap();
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        for word in expression.split(|letter| !is_letter(letter)) {
            if word.starts_with("airdma_") || word.starts_with("node_") {
                // A prefix stands for all families that begin with it.
                let end = if word.ends_with('_') { "" } else { "{" };
                assert!(answer.contains(&format!("\n{word}{end}")), "{word}");
                asked += 1;
            }
        }
    }
    assert!(asked > 10, "{asked}");
}
