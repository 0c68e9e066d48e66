#!/usr/bin/env python3
"""Writes seeds for the corpora: the packets and messages of the captures that tests read, and what
airdma hosts say to each other.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAPTURES = ROOT / "testing" / "captures" / "vectors"
AIR = ROOT / "crates" / "wire" / "tests" / "air.hex"
KNOWN_PEERS = [
    f"{'01' * 32} receiver - anna\n{'02' * 32} sender - 192.0.2.1\n",
    f"# mine\n{'01' * 32} receiver 02:00:00:00:00:01@10.0.0.0/24 10.0.0.7\n{'03' * 32} former line\n\n",
]
JOURNALS = [
    [
        '{"last_id":2}',
        '{"job":{"id":1,"order":{"paths":["/"],"to":"anna","code":"lusab-babad"},"state":"queued","added":1}}',
    ],
    [
        '{"last_id":1}',
        '{"job":{"id":1,"order":{"paths":[[47,255]],"to":"anna"},"state":"running","added":1,"attempts":2}}',
    ],
    ['{"job":{"id":18446744073709551615,"order":{"paths":[],"to":""},"state":"done","added":1,"ended":0}}'],
]
LEN_MAX = 300
"""Longer packets are the same with more payload."""


def main() -> int:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "fuzz" / "corpus"
    for capture in sorted(CAPTURES.rglob("*.pcap")):
        for ip_packet in ip_packets(capture.read_bytes()):
            transport = ip_packet[48 if ip_packet[0] >> 4 == 6 else 28 :]
            if len(transport) > LEN_MAX:
                continue
            write(out / "packet", transport)
            write(out / "icrc", ip_packet)
            ethertype = b"\x86\xdd" if ip_packet[0] >> 4 == 6 else b"\x08\x00"
            write(out / "frame", bytes(12) + ethertype + ip_packet + bytes(4))  # any ICRC
            if transport[5:8] == b"\x00\x00\x01":  # queue pair 1: a management datagram behind BTH and DETH
                write(out / "cm_mad", transport[20:])
                write(out / "cm_manager", b"\x00\x00\x0f" + transport[20:])
    for number, line in enumerate(AIR.read_text("ascii").split()):
        mad = bytes.fromhex(line)
        # Two hosts that ask, to one of which it is sent; and the same behind a WRITE.
        hosts = bytes([0, 0, 0, 0])
        write(out / "air_message", hosts + bytes([number & 1, 4]) + mad)
        write(out / "air_message", hosts + bytes([0, 2, 0, 0, 0, 0, 0x80, 0x10, number & 1, 4]) + mad)
    for text in KNOWN_PEERS:
        write(out / "known_peers", text.encode())
    for records in JOURNALS:
        lines = (f"{zlib.crc32(record.encode()):08x} {record}\n" for record in records)
        write(out / "queue_journal", "".join(lines).encode())
    for journal in journals():
        write(out / "file_journal", journal)
    return 0


def journals() -> Iterator[bytes]:
    """Choices of the target: policies, a sealed journal, its slots and fields, and two unfinished
    files of each kind.
    """
    options, sealed = b"\x00\x00", b"\x02"
    for policy in range(4):
        for chunks in range(3):
            slots = bytes([0, 0, 0, 0, chunks]) + bytes([0, 0, 1, 0, chunks])
            renamed, plain = bytes([0, 1, 2, 0, 0, 0]), bytes([0, 0, 0])
            for fields in (renamed, plain):
                for kind in range(8):
                    planted = bytes([2, 0, 0, 1, kind, 40, 0, 3, 1, kind, 40])
                    yield bytes([policy]) + options + sealed + slots + fields + planted


def ip_packets(pcap: bytes) -> Iterator[bytes]:
    """RoCEv2 packets in a capture of Ethernet frames, from the IP header to the last pad byte."""
    at = 24
    while at < len(pcap):
        captured = int.from_bytes(pcap[at + 8 : at + 12], "little")
        frame, at = pcap[at + 16 : at + 16 + captured], at + 16 + captured
        kind, packet = frame[12:14], frame[14:]
        if kind == b"\x08\x00":
            udp, length, protocol = 20, int.from_bytes(packet[2:4], "big"), packet[9]
        elif kind == b"\x86\xdd":
            udp, length, protocol = 40, 40 + int.from_bytes(packet[4:6], "big"), packet[6]
        else:
            continue
        if protocol == 17 and packet[udp + 2 : udp + 4] == (4791).to_bytes(2, "big"):
            yield packet[: length - 4]


def write(folder: Path, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)  # as libFuzzer names its files


if __name__ == "__main__":
    sys.exit(main())
