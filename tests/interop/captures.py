"""Looks at what crossed the wire: every packet's ICRC and checksums by a computation of our own,
and what tshark thinks of it.
"""

from __future__ import annotations

import ipaddress
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ETHERNET = 14
UDP_HEADER = 8

GUESSES = [
    "eth_over_ib",
    "fc_infiniband",
    "iser_infiniband",
    "lnet_ib",
    "mellanox_eoib",
    "rpcrdma_infiniband",
    "sdp_infiniband",
    "smb_direct_infiniband",
    "smcr_infiniband",
]
"""Dissectors that take payload for protocols by its first bytes. Ours are patterns: any of them
fits now and then.
"""


@dataclass
class Findings:
    """What the look at one capture found."""

    packets: int = 0
    bad: list[str] = field(default_factory=list)


def inspect(file: Path, ours: str) -> Findings:
    """What is wrong with the packets that come from address `ours`."""
    findings = Findings()
    for number, frame in enumerate(frames(file), 1):
        inspect_frame(frame, ours, number, findings)
    if findings.packets:
        findings.bad += _tshark(file, ours)
    return findings


def frames(file: Path) -> Iterator[bytes]:
    with file.open("rb") as capture:
        header = capture.read(24)
        if len(header) < 24:
            return
        order = "<" if header[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
        while len(record := capture.read(16)) == 16:
            length = struct.unpack(f"{order}I", record[8:12])[0]
            yield capture.read(length)


def inspect_frame(frame: bytes, ours: str, number: int, findings: Findings) -> None:
    ethertype = struct.unpack("!H", frame[12:14])[0]
    packet = frame[ETHERNET:]
    if ethertype == 0x0800:
        length = (packet[0] & 0xF) * 4
        source = str(ipaddress.IPv4Address(packet[12:16]))
        packet = packet[: struct.unpack("!H", packet[2:4])[0]]
        fragment = struct.unpack("!H", packet[6:8])[0] & 0x3FFF
    elif ethertype == 0x86DD:
        length = 40
        source = str(ipaddress.IPv6Address(packet[8:24]))
        packet = packet[: 40 + struct.unpack("!H", packet[4:6])[0]]
        fragment = packet[6] == 44
    else:
        return
    if source != ours:
        # Maybe damaged, where that is what netem does to them.
        return
    transport = len(packet) - length
    if ethertype == 0x0800:
        pseudo = packet[12:20] + struct.pack("!BBH", 0, 17, transport)
    else:
        pseudo = packet[8:40] + struct.pack("!IHBB", transport, 0, 0, 17)
    findings.packets += 1
    if fragment:
        return
    udp = packet[length:]
    if ethertype == 0x0800 and _sum(packet[:length]) != 0xFFFF:
        findings.bad.append(f"packet {number}: wrong checksum of the IPv4 header")
    if udp[6:8] != b"\0\0" and _sum(pseudo + udp) != 0xFFFF:
        findings.bad.append(f"packet {number}: wrong UDP checksum")
    if icrc(packet, length) != packet[-4:]:
        findings.bad.append(f"packet {number}: wrong ICRC")


def icrc(packet: bytes, ip_header: int) -> bytes:
    """The invariant CRC of an IP packet: what routers may change counts as ones (RoCEv2, annex
    A17).
    """
    covered = bytearray(b"\xff" * 8 + packet[:-4])
    ip = 8
    if packet[0] >> 4 == 4:
        covered[ip + 1] = 0xFF  # type of service
        covered[ip + 8] = 0xFF  # time to live
        covered[ip + 10 : ip + 12] = b"\xff\xff"  # checksum
    else:
        covered[ip] |= 0x0F
        covered[ip + 1 : ip + 4] = b"\xff\xff\xff"  # traffic class and flow label
        covered[ip + 7] = 0xFF  # hop limit
    covered[ip + ip_header + 6 : ip + ip_header + 8] = b"\xff\xff"  # UDP checksum
    covered[ip + ip_header + UDP_HEADER + 4] = 0xFF  # the BTH's FECN, BECN and reserved bits
    return struct.pack("<I", zlib.crc32(bytes(covered)))


def _sum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _tshark(file: Path, ours: str) -> list[str]:
    family = "ipv6" if ":" in ours else "ip"
    bad_checksum = "udp.checksum.status == 0 || ip.checksum.status == 0"
    complaint = f"_ws.malformed || _ws.short || {bad_checksum} || _ws.expert.severity == 8388608"
    command = ["tshark", "-n", "-r", str(file), "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
    command += [word for name in GUESSES for word in ("--disable-heuristic", name)]
    command += ["-Y", f"{family}.src == {ours} && ({complaint})"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return [f"tshark: {result.stderr.strip()}"]
    return [f"tshark: {line.strip()}" for line in result.stdout.splitlines()]


if __name__ == "__main__":
    found = inspect(Path(sys.argv[1]), sys.argv[2])
    print(f"{found.packets} packets from {sys.argv[2]}, {len(found.bad)} complaints", *found.bad[:20], sep="\n")
