"""What `airdma devices` says about a host: its GIDs and its counters."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from . import build
from .lab import INTERFACE, Host

DEVICE = f"airdma_{INTERFACE}"


def describe(host: Host) -> dict[str, Any]:
    """The host's device as JSON. Raises RuntimeError if there is none."""
    outcome = host.run([str(build.binary()), "devices", "-v", "--json"])
    if not outcome.ok:
        raise RuntimeError(outcome.explain())
    devices: list[dict[str, Any]] = json.loads(outcome.stdout)
    for device in devices:
        if device["name"] == DEVICE:
            return device
    raise RuntimeError(f"no {DEVICE} in {outcome.stdout}")


def counters(host: Host) -> dict[str, int]:
    """The host's counters by name, summed over every process that has used the device so far."""
    found: dict[str, int] = describe(host)["counters"]
    return found


def gid_index(host: Host, family: int) -> int:
    """The index of the GID that stands for the host's IPv4 or global IPv6 address."""
    wanted = ipaddress.ip_address(host.address(family))
    for index, gid in enumerate(describe(host)["gids"]):
        if ipaddress.ip_address(gid["address"]) == wanted:
            return index
    raise RuntimeError(f"{host.namespace} has no GID for {wanted}")
