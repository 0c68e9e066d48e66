"""`airdma bench` and its parts with real programs: seconds of each, from the hosts to the page."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airdma_lab import build
from case import Tally


@dataclass(frozen=True)
class _Part:
    """A part of the benchmark whose output is samples of series."""

    argv: tuple[str, ...]
    """Which part; none is the benchmark itself."""
    series: frozenset[str]
    cases: str
    """Regular expression of FIGURE/LINK/SERIES/SIZE."""
    targets: tuple[str, ...]
    """What the page's table of targets says."""
    pictures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join(["airdma bench", *self.argv])


_WIRED = ("cmtime", "send_lat", "sockperf_udp", "tcp_cubic", "udp_gso", "write_bw")
PARTS = (
    _Part(
        ("--no-peers",),
        frozenset(_WIRED),
        f"/veth-1500/({'|'.join(_WIRED)})/(64|65536|2000)$",
        (
            "ib_write_bw, 64 KiB, to the best TCP",
            "ib_send_lat, 64 B, p99, to sockperf UDP's",
            "connections by rdma_cm",
        ),
        ("veth-1500",),
    ),
    _Part(
        ("records",),
        frozenset({"write_record", "ud_read", "ud_send", "rc_write"}),
        "^bandwidth/(veth-1500/write_record/1024|loss-1/ud_read/262144|loss-5/write_record/262144)$",
        ("bandwidth of 1 KiB, to RC WRITE's", "valid bytes of 256 KiB at 5 % loss, from what it leaves"),
        ("loss-5",),
    ),
    _Part(
        ("sockets",),
        frozenset({"both", "server", "client", "none"}),
        "^bandwidth/veth-1500/",
        ("iperf3, one stream", "iperf3, 128 KiB, the server alone", "iperf3, 128 KiB, the client alone"),
    ),
)


def run(tally: Tally, folder: Path) -> None:
    """One sample of each kind of program."""
    for number, part in enumerate(PARTS):
        started = time.monotonic()
        tally.record(part.name, _complaints(part, folder / f"bench-{number}"), time.monotonic() - started)
    started = time.monotonic()
    tally.record("airdma bench files", _files(folder / "copies"), time.monotonic() - started)


def _complaints(part: _Part, stem: Path) -> list[str]:
    result = _bench([*part.argv, "--quick", "--only", part.cases, "--runs", "1"], stem)
    if result.returncode != 0:
        return [f"exit status {result.returncode}", result.stdout + result.stderr]
    taken = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    sampled = {
        curve["name"]
        for curve in taken["curves"]
        for point in curve["points"].values()
        if point["samples"] and point["samples"][0]["value"] > 0
    }
    complaints = [f"no sample of {name}" for name in sorted(part.series - sampled)]
    page = stem.with_suffix(".md").read_text(encoding="utf-8")
    complaints += [f"the page does not say {target!r}" for target in part.targets if target not in page]
    plots = [stem.with_name(f"{stem.name}-{name}.{ending}") for name in part.pictures for ending in ("svg", "png")]
    complaints += [f"no {plot.name}" for plot in plots if not plot.exists()]
    return [*complaints, result.stdout] if complaints else []


def _bench(argv: Sequence[str], stem: Path) -> subprocess.CompletedProcess[str]:
    command = [str(build.binary()), "bench", *argv, "--output", str(stem)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def _files(stem: Path) -> list[str]:
    """A small file and a hundred smaller ones by everybody who can be had; a copy that is not the
    same has failed.
    """
    result = _bench(["files", "--quick", "--folder", str(stem.parent)], stem)
    if result.returncode != 0:
        return [f"exit status {result.returncode}", result.stdout + result.stderr]
    cases = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))["cases"]
    complaints = [f"no sample of {case}" for case in cases if not case["samples"] or case["samples"][0]["mbit"] <= 0]
    copied = {(case["peer"], case["content"]) for case in cases}
    wanted = {(peer, content) for peer in ("airdma", "nc") for content in ("1MB", "100x4KiB")}
    complaints += [f"not copied: {missing}" for missing in sorted(wanted - copied)]
    page = stem.with_suffix(".md").read_text(encoding="utf-8")
    complaints += [] if "of the line rate" in page and "copies-seconds.svg" in page else [page]
    left = [path.name for path in stem.parent.glob("airdma-files-*")]
    return complaints + ([f"left behind: {left}"] if left else [])
