"""`airdma send` and an attacker on the path: packets that are kept and come again, and packets that
are made up.

What is kept are Ethernet frames as they arrive at the receiver's interface; they come again from
the sender's.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from airdma_lab import build
from airdma_lab.lab import INTERFACE, Lab
from case import Tally
from file_transfer import CODE, OK, SLOW_MBIT, Bench, Side, differences, ended, is_empty, memory, resident_bytes
from ip_layer import in_namespace

BYTES = 1_000_000
GROWTH_BYTES_MAX = 20_000_000
REPLAYS = 2
"""More would be three wrong codes, which an attacker on the path can send as well."""
FORGED_MAX = 40
LATER_S = 0.01
_ALL_PROTOCOLS = 3
_PACKET_QDISC_BYPASS, _PACKET_IGNORE_OUTGOING = 20, 23
_SOL_PACKET = 263
_FRAME_BYTES = 2048
_BUFFER_BYTES = 8 << 20
_TIMEOUT_S = 60.0
_POLL_S = 0.02
_SETTLED_S = 0.5
_ROCE_PORT = (4791).to_bytes(2, "big")
_IP, _UDP, _BTH = 14, 34, 42
_MAD = _BTH + 20
"""Behind BTH and DETH."""
_DATAGRAM = 0x64
_CONNECT_REQUEST = b"\x00\x10"
FORGED_REQUESTS = 160
_SERVED_S = 8.0
_SEALED = 0xDA
"""Opcode of packets of a sealed connection."""


def run(lab: Lab, tally: Tally) -> None:
    tests: list[tuple[str, Callable[[Bench, Wire], list[str]]]] = [
        ("each packet comes once more a moment later", _twice),
        ("the packets of a transfer come again to the next receiver", _again),
        ("packets are made up between those of the sender", _forged),
        ("connections are asked for in the name of 160 hosts", _flooded),
    ]
    with tempfile.TemporaryDirectory(prefix="airdma-replay-", dir=memory()) as folder:
        for number, (name, test) in enumerate(tests):
            started = time.monotonic()
            wire = Wire(lab)
            try:
                complaints = test(Bench(lab, Path(folder, str(number))), wire)
            except AssertionError as error:
                complaints = [str(error)]
            wire.close()
            tally.record(f"airdma send: {name}", complaints, time.monotonic() - started)


class Wire:
    """Sees each frame to the receiver as it arrives, and can send others in the sender's place."""

    def __init__(self, lab: Lab) -> None:
        with in_namespace(lab.b):
            self._seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        self._seen.bind((INTERFACE, _ALL_PROTOCOLS))
        self._seen.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._seen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        with in_namespace(lab.a):
            self._out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._out.bind((INTERFACE, 0))
        # Ahead of what waits at the interface.
        self._out.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)

    @contextlib.contextmanager
    def each(self, look: Callable[[bytes], None]) -> Iterator[None]:
        """Shows each frame to `look` while the `with` block runs."""
        is_over = threading.Event()

        def listen() -> None:
            self._seen.settimeout(_POLL_S)
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    frame = self._seen.recv(_FRAME_BYTES)
                    if frame[_IP - 2 : _IP + 1] == b"\x08\x00\x45" and frame[_UDP + 2 : _UDP + 4] == _ROCE_PORT:
                        look(frame)

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield
        finally:
            is_over.set()
            listener.join()

    def say(self, frame: bytes) -> None:
        # A full queue at the interface loses it, as any network might.
        with contextlib.suppress(OSError):
            self._out.send(frame)

    def close(self) -> None:
        self._seen.close()
        self._out.close()


def _transfer(bench: Bench, path: Path) -> tuple[Side, Side]:
    """The sender and the receiver, at their ends; each packet is a frame of its own, which can be
    said again as it is.
    """
    with bench.lab.a.slowed(SLOW_MBIT):
        receiver = bench.recv(before="exec env AIRDMA_SEGMENTATION=off")
        argv = [str(build.binary()), "send", "--json", "--code", CODE, str(path), bench.lab.b.ipv4]
        sender = bench.start(bench.lab.a, f"exec env AIRDMA_SEGMENTATION=off {shlex.join(argv)}")
        for side in (sender, receiver):
            side.program.wait(_TIMEOUT_S)
    return sender, receiver


def _twice(bench: Bench, wire: Wire) -> list[str]:
    path = bench.write("file", BYTES)
    waiting: deque[tuple[float, bytes]] = deque()
    echoed = 0

    def echo(frame: bytes) -> None:
        nonlocal echoed
        # It is seen when it comes again, too: only what is new is kept.
        if frame not in known:
            known.add(frame)
            waiting.append((time.monotonic() + LATER_S, frame))
        while waiting and waiting[0][0] < time.monotonic():
            wire.say(waiting.popleft()[1])
            echoed += 1

    known: set[bytes] = set()
    with wire.each(echo):
        sender, receiver = _transfer(bench, path)
    complaints = ended(sender, OK) + ended(receiver, OK)
    complaints += [] if echoed * 10_000 > BYTES else [f"only {echoed} packets came again"]
    return complaints + differences(bench)


def _again(bench: Bench, wire: Wire) -> list[str]:
    path = bench.write("file", BYTES)
    kept: list[bytes] = []
    with wire.each(kept.append):
        sender, receiver = _transfer(bench, path)
    complaints = ended(sender, OK) + ended(receiver, OK) + differences(bench)
    (bench.out / path.name).unlink()
    receiver = bench.recv()
    before = resident_bytes(receiver.program)
    for _ in range(REPLAYS):
        for frame in kept:
            wire.say(frame)
    time.sleep(_SETTLED_S)
    grown = resident_bytes(receiver.program) - before
    complaints += [f"it grew by {grown} bytes"] if grown > GROWTH_BYTES_MAX else []
    told = [event["event"] for event in receiver.events() if event["event"] not in ("listening", "addresses", "turned")]
    complaints += [f"a sender was let in: {told}"] if told else []
    complaints += is_empty(bench)
    # A sender that is known, or has the code, is served all the same.
    return complaints + ended(bench.send(path), OK) + ended(receiver, OK) + differences(bench)


def _forged(bench: Bench, wire: Wire) -> list[str]:
    """None of them reaches the connection, which is sealed: the transfer goes on as if there were
    none.
    """
    path = bench.write("file", BYTES)
    forged = 0

    def forge(frame: bytes) -> None:
        nonlocal forged
        if frame[_BTH] == _SEALED and forged < FORGED_MAX and frame not in known:
            for ahead in range(1, 5):
                made = _made_up(frame, ahead)
                known.add(made)
                wire.say(made)
                forged += 1

    known: set[bytes] = set()
    with wire.each(forge):
        sender, receiver = _transfer(bench, path)
    complaints = ended(sender, OK) + ended(receiver, OK) + differences(bench)
    return complaints + ([] if forged else ["nothing was made up"])


def _flooded(bench: Bench, wire: Wire) -> list[str]:
    """The receiver serves a sender that is there, sooner than a request that was lost would be
    repeated twice.
    """
    path = bench.write("file", BYTES)
    requests: list[bytes] = []

    def keep(frame: bytes) -> None:
        if frame[_BTH] == _DATAGRAM and frame[_MAD + 16 : _MAD + 18] == _CONNECT_REQUEST:
            requests.append(frame)

    with wire.each(keep):
        sender, receiver = _transfer(bench, path)
    complaints = ended(sender, OK) + ended(receiver, OK) + differences(bench)
    if not requests:
        return [*complaints, "no request was seen"]
    (bench.out / path.name).unlink()
    receiver = bench.recv()
    for number in range(FORGED_REQUESTS):
        wire.say(_asked_by(requests[0], number))
        time.sleep(_POLL_S / 10)
    started = time.monotonic()
    complaints += ended(bench.send(path), OK) + ended(receiver, OK) + differences(bench)
    took = time.monotonic() - started
    return complaints + ([f"it took {took:.1f} s"] if took > _SERVED_S else [])


def _asked_by(frame: bytes, number: int) -> bytes:
    """The same request from another host of the network, with another communication id."""
    packet = bytearray(frame[_IP : _IP + int.from_bytes(frame[_IP + 2 : _IP + 4], "big")])
    mad = _MAD - _IP
    before = bytes(packet[12:16])
    source = before[:3] + bytes([20 + number])
    packet[12:16] = source
    packet[mad:-4] = packet[mad:-4].replace(before, source)
    packet[mad + 24 : mad + 28] = (0x5000_0000 + number).to_bytes(4, "big")
    packet[10:12] = bytes(2)
    packet[10:12] = _checksum(bytes(packet[:20])).to_bytes(2, "big")
    udp = _UDP - _IP
    packet[udp + 6 : udp + 8] = bytes(2)
    packet[-4:] = _icrc(bytes(packet)).to_bytes(4, "little")
    return frame[:_IP] + bytes(packet)


def _checksum(header: bytes) -> int:
    """Checksum of an IPv4 header (RFC 1071)."""
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, len(header), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def _made_up(frame: bytes, ahead: int) -> bytes:
    """The same packet with another payload and a PSN `ahead` of its own; valid otherwise."""
    packet = bytearray(frame[_IP : _IP + int.from_bytes(frame[_IP + 2 : _IP + 4], "big")])
    bth = _BTH - _IP
    number = int.from_bytes(packet[bth + 9 : bth + 12], "big") + ahead
    packet[bth + 9 : bth + 12] = (number % (1 << 24)).to_bytes(3, "big")
    packet[-40:-4] = bytes(36)
    udp = _UDP - _IP
    packet[udp + 6 : udp + 8] = bytes(2)
    packet[-4:] = _icrc(bytes(packet)).to_bytes(4, "little")
    return frame[:_IP] + bytes(packet)


def _icrc(packet: bytes) -> int:
    """ICRC of an IPv4 packet whose last four bytes hold it later: what changes on the way counts as
    ones (IBTA A17.3.3).
    """
    masked = bytearray(packet[:-4])
    udp, bth = _UDP - _IP, _BTH - _IP
    for at in (1, 8, 10, 11, udp + 6, udp + 7, bth + 4):
        masked[at] = 0xFF
    return zlib.crc32(b"\xff" * 8 + masked)
