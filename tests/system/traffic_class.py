"""Which traffic class packets carry: what the program asked for, whoever sends them and over which
IP.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from airdma_lab import build, devices, perftest
from airdma_lab.lab import INTERFACE, Host, Lab
from case import Tally

CAPTURE = f"""
import json, signal, socket
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(1, 8, 32 << 20)
try:
    wire.setsockopt(1, 33, 32 << 20)
except PermissionError:
    pass  # Root may have more than net.core.rmem_max.
seen = set()
def look(frame, where):
    ip = frame[14:]
    if frame[12:14] == b"\\x08\\x00" and ip[9] == 17:
        traffic_class, udp = ip[1], ip[(ip[0] & 15) * 4:]
    elif frame[12:14] == b"\\x86\\xdd" and ip[6] == 17:
        traffic_class, udp = (ip[0] << 4 | ip[1] >> 4) & 255, ip[40:]
    else:
        return
    if udp[2:4] == b"\\x12\\xb7":
        seen.add((where[2] == 4, udp[8], int.from_bytes(udp[13:16], "big") == 1, traffic_class))
ended = False
def end(*_):
    global ended
    ended = True
signal.signal(signal.SIGTERM, end)
wire.bind(("{INTERFACE}", 0))
# On a busy machine packets wait here when the programs have ended.
wire.settimeout(0.1)
while True:
    try:
        look(*wire.recvfrom(200))
    except TimeoutError:
        if ended:
            break
print(json.dumps(sorted(seen)))
"""
"""What passes: (leaves the host, opcode, for connection management, traffic class), each once."""

ACKNOWLEDGE, UD_SEND = 0x11, 0x64


@dataclass(frozen=True)
class Asked:
    """A run of perftest, and what all its packets have to carry."""

    name: str
    argv: list[str]
    traffic_class: int
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def datagrams(self) -> bool:
        return "UD" in self.argv or (self.by_address and self.argv[0] == "udaddy")

    @property
    def by_address(self) -> bool:
        """Whether the programs find each other by rdma_cm (true) or over TCP."""
        return self.argv[0] in ("ucmatose", "udaddy")


RUNS = [
    Asked("nothing", ["ib_write_bw"], 0),
    Asked("a traffic class", ["ib_write_bw", "--tclass", "104"], 104),
    Asked("a traffic class for datagrams", ["ib_send_bw", "-c", "UD", "--tclass", "104"], 104),
    # perftest 4.5 shows what -T says, and does not request it.
    Asked("a type of service by rdma_cm", ["ucmatose", "-t", "136"], 136),
    Asked("a type of service for datagrams by rdma_cm", ["udaddy", "-t", "136"], 136),
    Asked("a service level", ["ib_send_bw", "-S", "5"], 5 << 5),
    Asked("a service level for datagrams", ["ib_send_bw", "-c", "UD", "-S", "1"], 1 << 5),
    Asked("both", ["ib_read_bw", "-S", "5", "--tclass", "104"], 104),
    Asked("nothing, as bulk without air mode", ["ib_write_bw"], 0, (("AIRDMA_BULK", "1"),)),
    Asked("nothing, as bulk", ["ib_write_bw"], 1 << 5, (("AIRDMA_BULK", "1"), ("AIRDMA_AIR", "1"))),
    Asked(
        "a traffic class, as bulk", ["ib_write_bw", "--tclass", "104"], 104, (("AIRDMA_BULK", "1"), ("AIRDMA_AIR", "1"))
    ),
    Asked("nothing, datagrams as bulk", ["ib_send_bw", "-c", "UD"], 0, (("AIRDMA_BULK", "1"), ("AIRDMA_AIR", "1"))),
]


def run(lab: Lab, tally: Tally) -> None:
    """Each over IPv4 and IPv6, while all packets at host a are looked at."""
    for family in (4, 6):
        for asked in RUNS:
            started = time.monotonic()
            complaints = _carried(lab, asked, family)
            name = f"packets carry what the program asks for: {asked.name}, IPv{family}"
            tally.record(name, complaints, time.monotonic() - started)


def _carried(lab: Lab, asked: Asked, family: int) -> list[str]:
    capture = lab.a.start(["python3", "-c", CAPTURE])
    if not capture.wait_capturing(10):
        return [capture.stop().explain()]
    environment = dict(asked.environment)
    server = lab.b.start(_server(lab.b, asked, family), environment)
    # A program that listens by rdma_cm has no socket of its own.
    ready = server.wait_idle(10) if asked.by_address else server.wait_listening(perftest.PORT, "tcp", 10)
    client = lab.a.run(_client(lab, asked, family), environment) if ready else None
    served = server.wait(10 if client and client.ok else 0)
    lab.b.forget(server)
    said = capture.stop()
    lab.a.forget(capture)
    if not client or not (client.ok and served.ok and said.ok):
        return [one.explain() for one in (served, client, said) if one]
    # What airdma hosts tell each other, and what rdma_cm says before there is a queue pair, is no
    # program's data.
    seen = [
        (leaves, opcode, carried)
        for leaves, opcode, is_management, carried in json.loads(said.stdout)
        if not is_management
    ]
    wrong = [of for of in seen if of[2] != asked.traffic_class]
    complaints = [f"not {asked.traffic_class}: {wrong}"] if wrong else []
    data = [of for of in seen if of[0]]
    back = [of for of in seen if not of[0] and (asked.datagrams or of[1] <= ACKNOWLEDGE)]
    complaints += [] if data and (back or asked.datagrams) else [f"seen was only {seen}"]
    if asked.datagrams:
        complaints += [] if all(opcode >= UD_SEND for _, opcode, _ in seen) else [f"no datagrams: {seen}"]
    return complaints


def _server(host: Host, asked: Asked, family: int) -> list[str]:
    if asked.by_address:
        # What it carries is what the client asked for.
        return build.with_airdma([asked.argv[0], "-b", host.address(family), *_ADDRESSES[family]])
    device = ["-d", devices.DEVICE, "-x", str(devices.gid_index(host, family))]
    return build.with_airdma([*asked.argv, "-s", "1024", "-n", "200", "-F", *device])


def _client(lab: Lab, asked: Asked, family: int) -> list[str]:
    if asked.by_address:
        return build.with_airdma([*asked.argv, "-s", lab.b.address(family), *_ADDRESSES[family]])
    return [*_server(lab.a, asked, family), lab.b.ipv4]


_ADDRESSES = {4: ["-f", "ip"], 6: ["-f", "ip6"]}
