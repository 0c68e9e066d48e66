"""docs/interop.md: what was seen when airdma last ran against rxe, and beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SEEN = Path(__file__).resolve().with_name("seen.json")
DOCUMENT = ROOT / "docs" / "interop.md"

Row = dict[str, Any]


def write_scenarios(release: str, rows: Iterable[Row], whole: bool) -> None:
    """Keeps what a run has found: name, failed, packets, retransmits, seconds of each. What a run
    of some has not run stays as it was; other kernels' rows do so, too.
    """
    kernel = ".".join(release.split(".")[:2])
    kept = _seen().get("scenarios", {})
    before = {} if whole else kept.get(kernel, {})
    found = {row["name"]: {**row, "seconds": round(row["seconds"], 1), "release": release} for row in rows}
    _update({"scenarios": {**kept, kernel: {**before, **found}}})


def write_beside(release: str, rounds: int, seconds: int, rows: list[Row]) -> None:
    """Keeps what `beside.py` has measured."""
    _update({"beside": {"release": release, "rounds": rounds, "seconds": seconds, "rows": rows}})


def _update(new: dict[str, Any]) -> None:
    seen = {**_seen(), **new}
    SEEN.write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    DOCUMENT.write_text(render(), encoding="utf-8")


def _seen() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
    return found


def render() -> str:
    """The document."""
    seen = _seen()
    parts = [
        "# Interoperability with the kernel's rxe",
        "Written by `make interop` and `make interop-beside`; `make lint` checks that it is unchanged. The peer is "
        "`rdma_rxe` of a stock Debian kernel in QEMU, which is emulated, not virtualised: only the ratios of the last table say "
        "anything about speed.",
    ]
    if scenarios := seen.get("scenarios"):
        parts += [
            "## Scenarios",
            "The client comes first. Packets are those that airdma's devices sent and received; retransmits are packets that airdma "
            "sent again and rounds in which rxe did. Every captured packet of airdma was checked: its ICRC and checksums by an "
            "independent computation, the rest by tshark.",
        ]
        for rows in scenarios.values():
            releases = ", ".join(sorted({row["release"] for row in rows.values()}))
            passed = sum(not row["failed"] for row in rows.values())
            parts += [f"### Linux {releases}: {passed} of {len(rows)} passed", _scenario_table(rows.values())]
    if beside := seen.get("beside"):
        parts += [
            "## Beside rxe in one guest",
            f"Linux {beside['release']}, two emulated cores; the same programs of perftest on the same veth pair, medians of "
            f"{beside['rounds']} runs of {beside['seconds']} s in turns, and TCP (iperf3, Nagle off, writes of the same "
            "size) on the same pair. Bandwidth in 10^6 bytes a second, latency in microseconds. CPU is that of the whole guest, "
            "both ends and the kernel: seconds for each 10^9 bytes, or, for latency, of each second.",
            beside_table(beside["rows"]),
        ]
    return "\n\n".join(parts) + "\n"


def _scenario_table(rows: Iterable[Row]) -> str:
    lines = ["| scenario | result | packets | retransmits |", "| --- | --- | ---: | ---: |"]
    for row in rows:
        result = "failed" if row["failed"] else "passed"
        lines.append(f"| {row['name'].replace('|', '&#124;')} | {result} | {row['packets']} | {row['retransmits']} |")
    return "\n".join(lines)


def beside_table(rows: Iterable[Row]) -> str:
    """One line for each program, size and MTU."""
    titles = ["MTU", "program", "bytes", "unit", "airdma", "rxe", "airdma/rxe", "TCP", "airdma/TCP"]
    titles += ["CPU airdma", "CPU rxe", "CPU TCP"]
    lines = [f"| {' | '.join(titles)} |", f"| --- | --- |{' ---: |' * (len(titles) - 2)}"]
    for row in rows:
        tcp = row["tcp"]
        cells = [row["mtu"], f"`{row['program']}`", row["size"], row["unit"], row["airdma"], row["rxe"]]
        cells += [_ratio(row["airdma"], row["rxe"]), tcp or "", _ratio(row["airdma"], tcp) if tcp else ""]
        cells += [row["airdma_cpu"], row["rxe_cpu"], row["tcp_cpu"] or ""]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else ""


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        DOCUMENT.write_text(render(), encoding="utf-8")
    elif not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != render():
        sys.exit("docs/interop.md is not what tests/interop/document.py makes of seen.json: run it")
