"""UCX, which looks at devices through sysfs, sets up its connections by datagrams and then uses what it finds best."""

from __future__ import annotations

import time

from airdma_lab import build, devices
from airdma_lab.lab import Host, Lab
from airdma_lab.pair import run_pair
from case import Tally

PORT = 13337
TRANSPORTS = {"rc_verbs": "reliable connections", "ud_verbs": "datagrams"}
# Message sizes in bytes: copied into a packet, and sent from where they lie.
TESTS = [("tag_lat", 8), ("tag_bw", 65536), ("ucp_put_bw", 65536), ("ucp_get", 4096), ("ucp_fadd", 8), ("ucp_cswap", 8)]
DATAGRAM_TESTS = [("tag_lat", 8), ("tag_bw", 65536)]


def run(lab: Lab, tally: Tally) -> None:
    """Finds the device, and runs UCX's own benchmark over each of its transports and address families."""
    started = time.monotonic()
    tally.record("ucx_info -d", _finds_the_device(lab.a), time.monotonic() - started)
    for family in (4, 6):
        for test, size in TESTS:
            _perftest(lab, tally, family, "ib", test, size)
    for test, size in DATAGRAM_TESTS:
        _perftest(lab, tally, 4, "ud_verbs", test, size)


def _finds_the_device(host: Host) -> list[str]:
    outcome = host.run(build.with_airdma(["ucx_info", "-d"]))
    text = " ".join(outcome.stdout.split())
    missing = [name for name in TRANSPORTS if f"Transport: {name} # Device: {devices.DEVICE}:1" not in text]
    return [f"it does not find {', '.join(missing)}\n{outcome.explain()}"] if missing else []


def _perftest(lab: Lab, tally: Tally, family: int, transports: str, test: str, size: int) -> None:
    started = time.monotonic()
    argv = build.with_airdma(["ucx_perftest", "-t", test, "-s", str(size), "-n", "1000", "-w", "100", "-p", str(PORT)])
    environment = {
        "UCX_NET_DEVICES": f"{devices.DEVICE}:1",
        "UCX_TLS": transports,
        # The same at both ends: their tables begin alike.
        "UCX_IB_GID_INDEX": str(devices.gid_index(lab.a, family)),
    }
    pair = run_pair(lab.a, lab.b, argv, [*argv, lab.a.ipv4], port=PORT, timeout_s=30, environment=environment)
    complaints = []
    if not pair.ok or pair.client is None or "Final:" not in pair.client.stdout:
        complaints = ["it did not finish", pair.explain()]
    tally.record(f"ucx_perftest -t {test} -s {size} [{transports} ipv{family}]", complaints, time.monotonic() - started)
