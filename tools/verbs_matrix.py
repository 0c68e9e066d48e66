#!/usr/bin/env python3
"""Writes MATRIX.md: every symbol and function slot of libibverbs, whether airdma supports it, and
who uses it.

What is supported is read from the macro calls in crates/verbs/src/entry, who uses what from
verbs_users.csv beside this script (imports of Debian 12's binaries, and calls of inline functions
in the sources of the programs named).
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENTRIES = ROOT / "crates" / "verbs" / "src" / "entry"
USERS = Path(__file__).resolve().with_name("verbs_users.csv")
MATRIX = ROOT / "MATRIX.md"

ENTRY = re.compile(
    r"^\s*(export|slot|fast) fn (\w+)\((.*?)\)(?: -> ([^=;]+?))? = (\w+(?:::\w+)*);", re.MULTILINE | re.DOTALL
)

# Slots behind which rdma-core keeps what it retired: no inline function calls them.
RETIRED = {"retired", "placeholder"}

# Bodies that check their arguments before they refuse.
REFUSING = {"work_batch::send_tso", "device_memory::export", "buffer::export"}

# What the header knows and no device without such hardware has.
REASONS = {
    "flow": "packet filters of raw Ethernet queue pairs",
    "counters": "counters attached to flows",
    "rwq": "receive-side scaling of raw Ethernet",
    "wq": "receive-side scaling of raw Ethernet",
    "tso": "segmentation of raw Ethernet frames",
    "dmabuf": "no memory of airdma's is exported to other devices",
    "ece": "vendors' connection options: there are none",
    "modify_cq": "completion moderation: completions are polled, not interrupts",
    "post_srq_ops": "tag matching",
    "tm_info": "tag matching",
    "cvlan": "raw Ethernet",
    "flow_tag": "raw Ethernet",
    "export": "memory of other devices",
}


@dataclass(frozen=True)
class Call:
    """One symbol, or one function slot that an inline function of verbs.h calls."""

    name: str
    exported: bool
    supported: bool
    users: str


def calls() -> list[Call]:
    users = _users()
    found = []
    for source in sorted(ENTRIES.glob("*.rs")):
        for kind, name, _, _, body in ENTRY.findall(source.read_text(encoding="utf-8")):
            if name not in RETIRED and (kind != "export" or name.lstrip("_").startswith(("ibv_", "mult_", "mbps_"))):
                supported = not body.startswith("unsupported") and body not in REFUSING
                found.append(Call(name, kind == "export", supported, users.get(name, "")))
    return sorted(found, key=lambda call: (not call.exported, call.name.lstrip("_")))


def _users() -> dict[str, str]:
    with USERS.open(encoding="utf-8", newline="") as file:
        return {row["call"]: row["users"].replace("; ", ", ") for row in csv.DictReader(file)}


def render() -> str:
    found = calls()
    exported = [call for call in found if call.exported]
    slots = [call for call in found if not call.exported]
    supported = sum(call.supported for call in found)
    parts = [
        "# What airdma supports of libibverbs",
        "Written by `tools/verbs_matrix.py`; `make lint` checks that it is up to date. "
        f"{supported} of {len(found)} calls are supported; the others answer EOPNOTSUPP, as their man pages say.",
        'The calls are those of rdma-core 65, the newest release; programs built against any from 44 on load. "Used by" is what these programs import, or call through inline '
        "functions; no entry means that none of them does.",
        "## Symbols",
        _table(exported),
        "## Function slots",
        "Inline functions of `verbs.h` call these through `ibv_context`, `ibv_qp_ex`, `ibv_cq_ex` and `ibv_dm`: "
        "`ibv_post_send()` calls `post_send`, `ibv_wr_send()` calls `wr_send`.",
        _table(slots),
    ]
    return "\n\n".join(parts) + "\n"


def _table(found: list[Call]) -> str:
    rows = ["| call | airdma | used by |", "| --- | --- | --- |"]
    for call in found:
        answer = "supported" if call.supported else f"EOPNOTSUPP{_reason(call.name)}"
        rows.append(f"| `{call.name}` | {answer} | {call.users} |")
    return "\n".join(rows)


def _reason(name: str) -> str:
    for part, reason in REASONS.items():
        if part in name:
            return f" ({reason})"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if MATRIX.md is not what would be written"
    )
    arguments = parser.parse_args()
    text = render()
    if not arguments.check:
        MATRIX.write_text(text, encoding="utf-8")
        return 0
    if MATRIX.read_text(encoding="utf-8") == text:
        return 0
    print("MATRIX.md is out of date: run tools/verbs_matrix.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
