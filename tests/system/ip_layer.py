"""The IP layer of simulated hosts against this kernel's: damaged packets, and what each hands on of
them.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airdma_lab.build import ROOT
from airdma_lab.lab import INTERFACE, Host, Lab
from case import Tally

COUNT = 4000
"""Packets of each family, without UDP checksum and with one."""
_ROCE_PORT = 4791
_UDP_NO_CHECK6_RX = 102
_ETHERTYPES = {4: 0x0800, 6: 0x86DD}
_SHOWN_MAX = 5
_TIMEOUT_S = 5.0


def run(lab: Lab, tally: Tally) -> None:
    """Sends what `damaged_packets` prints from host a to b, where a socket says what arrives."""
    for family in (4, 6):
        started = time.monotonic()
        complaints = _compare(lab, family)
        name = f"the IP layer of simulated hosts refuses what this kernel refuses, IPv{family}"
        tally.record(name, complaints, time.monotonic() - started)


def _compare(lab: Lab, family: int) -> list[str]:
    lines = _packets(lab.a.address(family), lab.b.address(family))
    frame_header = _link_address(lab.b) + _link_address(lab.a) + _ETHERTYPES[family].to_bytes(2, "big")
    with in_namespace(lab.a):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sender.bind((INTERFACE, 0))
    with in_namespace(lab.b):
        receiver = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        if family == 6:
            receiver.setsockopt(socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, 1)
        receiver.bind((lab.b.address(family), _ROCE_PORT))
    with sender, receiver:
        receiver.settimeout(_TIMEOUT_S)
        differences = list(_differences(lines, frame_header, sender, receiver))
    shown = differences[:_SHOWN_MAX]
    return [f"{len(differences)} of {len(lines)} differ", *shown] if differences else []


def _differences(
    lines: list[str], frame_header: bytes, sender: socket.socket, receiver: socket.socket
) -> Iterator[str]:
    """A packet that is certain to arrive follows each: what comes before it came of the packet."""
    last_packet, _, last = lines[0].partition(" ")
    for line in lines:
        packet, _, expected = line.partition(" ")
        sender.send(frame_header + bytes.fromhex(packet))
        sender.send(frame_header + bytes.fromhex(last_packet))
        arrived: list[str] = []
        while not arrived or arrived[-1] != last:
            payload, address = receiver.recvfrom(65536)
            arrived.append(f"{address[0]} {address[1]} {payload.hex()}")
        if line == lines[0]:
            receiver.recvfrom(65536)
            continue
        got = " ".join(arrived[:-1])
        if got != expected:
            yield f"packet {packet}\n  simulated: {expected or 'refused'}\n  kernel:    {got or 'refused'}"


def _packets(source: str, destination: str) -> list[str]:
    cargo = os.environ.get("CARGO", "cargo")
    example = ["run", "--quiet", "--release", "--package", "airdma-sim", "--example", "damaged_packets", "--"]
    command = [cargo, *example, source, destination, str(COUNT)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def _link_address(host: Host) -> bytes:
    command = ["ip", "-n", host.namespace, "-json", "link", "show", INTERFACE]
    listing = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return bytes.fromhex(listing[0]["address"].replace(":", ""))


@contextmanager
def in_namespace(host: Host) -> Iterator[None]:
    """Sockets that are made inside belong to the host (os.setns came with Python 3.12)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open("rb") as own, host.namespace_path.open("rb") as there:
        _set_namespace(libc, there.fileno())
        try:
            yield
        finally:
            _set_namespace(libc, own.fileno())


def _set_namespace(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "setns")
