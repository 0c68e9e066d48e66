//! Whether the firewall of this host lets RoCEv2 in, as far as its rules can be read.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::Finding;
use crate::run::ports::PORT;

/// Reads the rules of nftables, or else of iptables. Both need privilege.
pub fn look() -> Finding {
    let found = match nftables().or_else(iptables) {
        Some(Ok(chain)) => chain,
        Some(Err(reason)) => return Finding::skip("firewall", reason),
        None => return Finding::ok("firewall", "neither nftables nor iptables is installed"),
    };
    match found {
        Some(chain) => Finding::hint(
            "firewall",
            format!("{chain} drops what no rule accepts, and no rule names UDP port {PORT}"),
            format!("`{}`", opening(&chain)),
        ),
        None => Finding::ok("firewall", format!("no chain is closed to UDP port {PORT}")),
    }
}

/// The command of the host's own tool, if it has one: rules that are added behind its back vanish.
fn opening(chain: &str) -> String {
    if is_there("ufw") && output("ufw", &["status"]).is_ok_and(|it| it.contains("Status: active")) {
        format!("ufw allow {PORT}/udp")
    } else if output("firewall-cmd", &["--state"]).is_ok() {
        format!("firewall-cmd --permanent --add-port={PORT}/udp && firewall-cmd --reload")
    } else if chain == IPTABLES {
        format!("iptables -I INPUT -p udp --dport {PORT} -j ACCEPT")
    } else {
        format!("nft insert rule {chain} udp dport {PORT} accept")
    }
}

/// The chain that is closed, as `nft` names it; an error says why the rules cannot be read. `None`
/// without the program.
fn nftables() -> Option<Result<Option<String>, String>> {
    let listed = said("nft", &["-j", "list", "ruleset"])?;
    Some(listed.map(|text| closed_chain(&serde_json::from_str(&text).unwrap_or_default())))
}

fn iptables() -> Option<Result<Option<String>, String>> {
    let listed = said("iptables-save", &["-t", "filter"])?;
    Some(listed.map(|text| closed_table(&text).then(|| IPTABLES.to_owned())))
}

/// The first chain of the hook `input` that drops what no rule accepts, unless a rule of the
/// ruleset names the port or all of UDP.
///
/// Rules are not evaluated: sets, marks and interfaces may still let packets in or keep them out.
fn closed_chain(ruleset: &Value) -> Option<String> {
    let rows = ruleset["nftables"].as_array()?;
    let is_open = |row: &Value| row.get("rule").is_some_and(|rule| accepts(&rule["expr"]));
    if rows.iter().any(is_open) {
        return None;
    }
    let closed = |row: &Value| {
        let chain = row.get("chain")?;
        let text = |key: &str| chain[key].as_str();
        let takes_ip = matches!(text("family")?, "ip" | "ip6" | "inet");
        (takes_ip && text("hook")? == "input" && text("policy")? == "drop")
            .then(|| format!("{} {} {}", text("family")?, text("table")?, text("name")?).into())
            .flatten()
    };
    rows.iter().find_map(closed)
}

/// Whether a rule accepts packets for the port.
fn accepts(expressions: &Value) -> bool {
    let all = expressions.as_array().map_or(&[][..], Vec::as_slice);
    let verdict = all.iter().any(|it| it.get("accept").is_some());
    let names_port = all.iter().any(|it| {
        let compared = &it["match"];
        let field = &compared["left"]["payload"];
        let is_port = field["field"] == "dport" && field["protocol"] != "tcp";
        is_port && compared["op"] != "!=" && has_port(&compared["right"])
    });
    verdict && names_port
}

/// Whether a value of nft's JSON is the port, or a set or range with it.
fn has_port(value: &Value) -> bool {
    let number = |value: &Value| value.as_u64();
    if let Some(range) = value["range"].as_array() {
        let [Some(first), Some(last)] = [range.first(), range.last()].map(|it| it.and_then(number))
        else {
            return false;
        };
        return (first..=last).contains(&u64::from(PORT));
    }
    match value["set"].as_array() {
        Some(set) => set.iter().any(has_port),
        None => number(value) == Some(u64::from(PORT)),
    }
}

/// Whether what `iptables-save` printed drops by default and accepts nothing at the port.
fn closed_table(text: &str) -> bool {
    let port = PORT.to_string();
    let drops = text.lines().any(|line| line.starts_with(":INPUT DROP"));
    let opens = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.contains(&"udp") && words.contains(&port.as_str()) && words.contains(&"ACCEPT")
    };
    drops && !text.lines().any(opens)
}

/// Output of a program; `None` if it is not there.
fn said(program: &str, arguments: &[&str]) -> Option<Result<String, String>> {
    is_there(program).then(|| output(program, arguments))
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let done = command(program, arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&done.stderr);
    let first = complaint.lines().next().unwrap_or("it failed");
    Err(format!(
        "{program}: {}; run `sudo airdma doctor`",
        first.trim()
    ))
}

fn is_there(program: &str) -> bool {
    command(program, &["--version"]).output().is_ok()
}

/// A program of the administrator's: many users lack its folder in their path.
fn command(program: &str, arguments: &[&str]) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .stdin(Stdio::null());
    command
}

const IPTABLES: &str = "the chain INPUT of iptables";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ruleset(policy: &str, right: &Value) -> Value {
        json!({"nftables": [
            {"metainfo": {"json_schema_version": 1}},
            {"chain": {"family": "inet", "table": "filter", "name": "input", "hook": "input", "policy": policy}},
            {"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": [
                {"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": right}},
                {"accept": null}
            ]}},
        ]})
    }

    #[test]
    fn a_chain_that_drops_is_named_unless_a_rule_has_the_port() {
        let closed = Some("inet filter input".to_owned());
        assert_eq!(closed_chain(&ruleset("drop", &json!(53))), closed);
        assert_eq!(closed_chain(&ruleset("accept", &json!(53))), None);
        for open in [
            json!(4791),
            json!({"set": [53, 4791]}),
            json!({"range": [4000, 5000]}),
            json!({"set": [53, {"range": [4790, 4791]}]}),
        ] {
            assert_eq!(closed_chain(&ruleset("drop", &open)), None, "{open}");
        }
        let other = json!({"range": [5000, 6000]});
        assert_eq!(closed_chain(&ruleset("drop", &other)), closed);
        assert_eq!(closed_chain(&Value::Null), None);
    }

    #[test]
    fn a_table_of_iptables_is_open_by_policy_or_by_a_rule() {
        let dropping = "*filter\n:INPUT DROP [0:0]\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n";
        assert!(closed_table(dropping));
        assert!(!closed_table(&dropping.replace("DROP", "ACCEPT")));
        let rule = "-A INPUT -p udp -m udp --dport 4791 -j ACCEPT\n";
        assert!(!closed_table(&format!("{dropping}{rule}")));
    }
}
