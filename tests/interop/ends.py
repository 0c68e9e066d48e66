"""The guest as an end of a line: its programs use the kernel's rxe, or airdma."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any

from guest import HOST_FOLDER, Guest, GuestError, Job
from programs.end import Running
from programs.line import Line

DEVICE = "rxe0"

RENAMED = {
    "sent_pkts": "tx_packets",
    "rcvd_pkts": "rx_packets",
    "completer_retry_err": "retransmits",
    "duplicate_request": "duplicates",
    "rcvd_seq_err": "sequence_naks_received",
    "send_rnr_err": "rnr_naks_sent",
    "rcvd_rnr_err": "rnr_naks_received",
}
"""What rxe calls them -> what airdma does."""


class RxeEnd:
    """Programs of the guest on rxe, which serves the guest's first network namespace only."""

    def __init__(self, guest: Guest, interface: str = "eth0", ipv4: str = "", ipv6: str = "") -> None:
        self._guest = guest
        self._interface = interface
        self.ipv4 = ipv4 or guest.ipv4
        self.ipv6 = ipv6 or guest.ipv6

    def set_up(self) -> None:
        """Brings its device up, with the MTU that its interface has now."""
        self._guest.script(
            f"modprobe -a rdma_rxe rdma_ucm ib_uverbs; rdma link delete {DEVICE} 2> /dev/null || true\n"
            f"rdma link add {DEVICE} type rxe netdev {self._interface}\n"
            f"until rdma link show {DEVICE}/1 | grep -q ACTIVE; do sleep 0.05; done"
        )

    def tear_down(self) -> None:
        """Takes its device away, and the driver, which holds the RoCE port for as long as it is
        loaded.
        """
        self._guest.script(f"rdma link delete {DEVICE}; modprobe -r rdma_rxe")

    def words(self) -> Mapping[str, str]:
        gids = self._guest.script(f"cd /sys/class/infiniband/{DEVICE}/ports/1/gids; grep . [0-9] 1[0-5]")
        index = {gid: number for number, gid in re.findall(r"^(\d+):(\S+)$", gids, re.MULTILINE)}
        return {
            "device": DEVICE,
            "gid": index[_gid(f"::ffff:{self.ipv4}")],
            "gid6": index[_gid(self.ipv6)],
            "folder": f"{HOST_FOLDER}/bin",
            "namespace": "",
        }

    def start(self, line: Line, argv: list[str], environment: dict[str, str]) -> Running:
        del line
        return self._guest.start(argv, environment)

    def forget(self, program: Running) -> None:
        assert isinstance(program, Job)
        program.wait(0)

    def counters(self) -> dict[str, int]:
        found = self._guest.script(
            f"cd /sys/class/infiniband/{DEVICE}/ports/1/hw_counters\n"
            f"grep . * /sys/class/net/{self._interface}/statistics/rx_bytes"
        )
        pairs = re.findall(r"^(?:.*/)?(\w+):(\d+)$", found, re.MULTILINE)
        return {RENAMED.get(name, name): int(value) for name, value in pairs}


class AirdmaGuestEnd:
    """Programs of the guest on airdma, at one of its interfaces."""

    def __init__(self, guest: Guest, interface: str, ipv4: str, ipv6: str, namespace: str = "") -> None:
        self._guest = guest
        self._device = f"airdma_{interface}"
        self._within = ["ip", "netns", "exec", namespace] if namespace else []
        self.ipv4 = ipv4
        self.ipv6 = ipv6
        self._namespace = namespace

    def words(self) -> Mapping[str, str]:
        addresses = [ipaddress.ip_address(gid["address"]) for gid in self._describe()["gids"]]
        return {
            "device": self._device,
            "gid": str(addresses.index(ipaddress.ip_address(self.ipv4))),
            "gid6": str(addresses.index(ipaddress.ip_address(self.ipv6))),
            "folder": f"{HOST_FOLDER}/bin",
            "namespace": self._namespace,
        }

    def start(self, line: Line, argv: list[str], environment: dict[str, str]) -> Running:
        del line
        return self._guest.start([*self._within, f"{HOST_FOLDER}/bin/airdma", "run", "--", *argv], environment)

    def forget(self, program: Running) -> None:
        assert isinstance(program, Job)
        program.wait(0)

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self._describe()["counters"]
        return found

    def _describe(self) -> dict[str, Any]:
        outcome = self._guest.run([*self._within, f"{HOST_FOLDER}/bin/airdma", "devices", "-v", "--json"])
        if not outcome.ok:
            raise GuestError(outcome.explain())
        devices: list[dict[str, Any]] = json.loads(outcome.stdout)
        return next(device for device in devices if device["name"] == self._device)


def _gid(address: str) -> str:
    return ipaddress.IPv6Address(address).exploded
