"""Programs that need no peer: what they say about the device."""

from __future__ import annotations

import time

from airdma_lab import build, devices
from airdma_lab.lab import Host, Lab
from case import Tally

IBV_MTU = {1500: "1024 (3)", 4200: "4096 (5)", 9000: "4096 (5)"}
"""Interface MTU -> active path MTU as ibv_devinfo prints it."""


def run(lab: Lab, tally: Tally) -> None:
    """Runs them on both hosts."""
    for host in (lab.a, lab.b):
        for argv, wanted in _programs(lab, host):
            started = time.monotonic()
            outcome = host.run(argv)
            complaints = [] if outcome.ok else ["it failed"]
            # Programs pad with blanks as they like.
            text = " ".join(outcome.stdout.split())
            complaints += [f"it does not say {words!r}" for words in wanted if words not in text]
            name = f"{argv[0].rsplit('/', 1)[-1]} {' '.join(argv[1:])} [mtu{lab.mtu} host {host.namespace[-1]}]"
            tally.record(name, [*complaints, outcome.explain()] if complaints else [], time.monotonic() - started)


def _programs(lab: Lab, host: Host) -> list[tuple[list[str], list[str]]]:
    airdma = str(build.binary())
    return [
        (build.with_airdma(["ibv_devices"]), [devices.DEVICE]),
        (build.with_airdma(["ibv_devinfo"]), [f"hca_id: {devices.DEVICE}", "PORT_ACTIVE", "link_layer: Ethernet"]),
        (
            build.with_airdma(["ibv_devinfo", "-v"]),
            [
                f"hca_id: {devices.DEVICE}",
                "state: PORT_ACTIVE",
                f"active_mtu: {IBV_MTU[lab.mtu]}",
                f"::ffff:{host.ipv4}, RoCE v2",
                f"{host.ipv6}, RoCE v2",
            ],
        ),
        ([airdma, "devices"], [devices.DEVICE]),
        ([airdma, "devices", "-v"], [devices.DEVICE, host.ipv4, host.ipv6, "retransmits"]),
    ]
