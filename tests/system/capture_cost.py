#!/usr/bin/env python3
"""Measures what `airdma capture` costs the program that is looked at.

  python3 tests/system/capture_cost.py [--rounds 5] [--messages 20000]

ib_write_bw sends the same messages without a capture, with one that keeps the first 128 bytes of
each packet, and with one that keeps all, in turns. The CPU time of the sender is compared, its
thread that serves the capture included. Needs release binaries (`make build`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from airdma_lab import build, devices, perftest, privileges
from airdma_lab.lab import Lab

MESSAGE_BYTES = 65536
WAYS = {"no capture": None, "capture --snap 128": "128", "capture": "65536"}
_LIMIT_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    options = parser.parse_args()
    build.require()
    privileges.enter()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    lost: dict[str, list[str]] = {way: [] for way in WAYS}
    with Lab() as lab:
        for _ in range(options.rounds):
            for way, snap in WAYS.items():
                used, said = _sender_cpu_s(lab, options.messages, snap)
                seconds[way].append(used)
                lost[way].append(said)
    (base, *_others) = WAYS
    for way, values in seconds.items():
        ratios = [value / without for value, without in zip(values, seconds[base], strict=True)]
        shown = " ".join(f"{value:.2f}" for value in values)
        print(f"{way:20} x{statistics.median(ratios):.3f}  {shown} s  {lost[way][-1]}")
    return 0


def _sender_cpu_s(lab: Lab, messages: int, snap: str | None) -> tuple[float, str]:
    """CPU time of the sender, and what the capture says at its end."""
    index = str(devices.gid_index(lab.b, 4))
    argv = build.with_airdma(["ib_write_bw", "-s", str(MESSAGE_BYTES), "-x", index, "-n", str(messages)])
    capture = lab.a.start([str(build.binary()), "capture", "/dev/null", "--snap", snap]) if snap else None
    server = lab.b.start(argv)
    server.wait_listening(perftest.PORT, "tcp", _LIMIT_S)
    client = lab.a.start([*argv, lab.b.ipv4])
    outcome = client.wait(_LIMIT_S)
    said = ""
    if capture:
        said = capture.stop().stderr.strip()
        lab.a.forget(capture)
    lab.a.forget(client)
    lab.b.forget(server)
    assert outcome.ok, outcome.explain()
    return outcome.cpu_s, said


if __name__ == "__main__":
    sys.exit(main())
