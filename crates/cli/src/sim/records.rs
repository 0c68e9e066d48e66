//! `airdma sim records`: Write-Records over a network with loss, in virtual time, as a table that
//! is the same on every machine.

use airdma_worlds::lossy::{declared, of_sends, of_the_paper};
use std::fmt::Write as _;

const SIZES: [(&str, u32); 6] = [
    ("1 KiB", 1 << 10),
    ("16 KiB", 16 << 10),
    ("63 KiB", 63 << 10),
    ("256 KiB", 256 << 10),
    ("1 MiB", 1 << 20),
    ("4 MiB", 4 << 20),
];
const PERCENT: [f64; 4] = [0.1, 0.5, 1.0, 5.0];
/// Packets of each cell, and its fewest and most messages.
const PACKETS: u32 = 600_000;
const MESSAGES: std::ops::RangeInclusive<u32> = 300..=40_000;
/// Payload of a packet at MTU 1500 over IPv4.
const PAYLOAD: u32 = 1416;

const INTRODUCTION: &str = "# Write-Record in virtual time

Written by `airdma sim records > docs/benchmarks/records-virtual.md`; `make records-virtual` compares. Messages of one queue pair to
another, packets of up to 1,416 bytes (MTU 1500), each of which is lost by chance alone. Shares of the sent bytes that the target declares valid, in per cent.
*Write-Record* and *strict_last* (a message ends with its last packet, and is lost without it) are requester and target of the transport. Beside them, computed: what the loss
leaves; the paper's rule (datagrams of 64 KB in IP fragments of 1,480 bytes, whole or lost, and the last one must arrive); and messages of such datagrams that are whole or lost (SEND). *Times the paper* is
Write-Record by the paper's rule.
";

/// The whole table in Markdown.
pub fn table() -> Result<String, std::fmt::Error> {
    let mut text = String::from(INTRODUCTION);
    for percent in PERCENT {
        let loss = percent / 100.0;
        writeln!(text, "\n## {percent} % of packets lost\n")?;
        writeln!(
            text,
            "| message | packets | Write-Record | the loss leaves | whole messages | strict_last | paper's rule | SEND | times the paper |"
        )?;
        writeln!(
            text,
            "| --- | --: | --: | --: | --: | --: | --: | --: | --: |"
        )?;
        for (name, length) in SIZES {
            let messages = PACKETS / length.div_ceil(PAYLOAD);
            let messages = messages.clamp(*MESSAGES.start(), *MESSAGES.end());
            let found = declared(length, loss, false, messages);
            let strict = declared(length, loss, true, messages);
            let paper = of_the_paper(length, loss);
            writeln!(
                text,
                "| {name} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
                found.packets,
                found.valid * 100.0,
                100.0 - percent,
                found.whole * 100.0,
                strict.valid * 100.0,
                paper * 100.0,
                of_sends(length, loss) * 100.0,
                found.valid / paper,
            )?;
        }
    }
    Ok(text)
}
