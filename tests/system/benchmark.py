"""`airdma bench` and `airdma bench files` with real programs: seconds of each, from the hosts to
the page.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from airdma_lab import build
from case import Tally

SERIES = {"write_bw", "tcp_cubic", "udp_gso", "send_lat", "sockperf_udp", "cmtime"}
CASES = f"/veth-1500/({'|'.join(sorted(SERIES))})/(64|65536|2000)$"
TARGETS = (
    "ib_write_bw, 64 KiB, to the best TCP",
    "ib_send_lat, 64 B, p99, to sockperf UDP's",
    "connections by rdma_cm",
)


def run(tally: Tally, folder: Path) -> None:
    """One sample of each kind of program."""
    started = time.monotonic()
    tally.record("airdma bench", _complaints(folder / "bench"), time.monotonic() - started)
    started = time.monotonic()
    tally.record("airdma bench files", _files(folder / "copies"), time.monotonic() - started)


def _complaints(stem: Path) -> list[str]:
    chosen = ["--quick", "--no-peers", "--only", CASES, "--runs", "1"]
    command = [str(build.binary()), "bench", *chosen, "--output", str(stem)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if result.returncode != 0:
        return [f"exit status {result.returncode}", result.stdout + result.stderr]
    taken = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    sampled = {
        curve["name"]
        for curve in taken["curves"]
        for point in curve["points"].values()
        if point["samples"] and point["samples"][0]["value"] > 0
    }
    complaints = [f"no sample of {name}" for name in sorted(SERIES - sampled)]
    page = stem.with_suffix(".md").read_text(encoding="utf-8")
    complaints += [f"the page does not say {target!r}" for target in TARGETS if target not in page]
    plots = [stem.with_name(f"{stem.name}-veth-1500.{ending}") for ending in ("svg", "png")]
    complaints += [f"no {plot.name}" for plot in plots if not plot.exists()]
    return [*complaints, result.stdout] if complaints else []


def _files(stem: Path) -> list[str]:
    """A small file and a hundred smaller ones by everybody who can be had; a copy that is not the
    same has failed.
    """
    command = [str(build.binary()), "bench", "files", "--quick", "--folder", str(stem.parent), "--output", str(stem)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
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
