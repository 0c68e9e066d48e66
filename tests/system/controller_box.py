"""`airdma link controller`: the box between a plain RoCE host and a radio.

    host h: eth0 ---- in0, NIC n, out0 ---- host0, box x, radio0 ---- eth0: host f

A veth takes no notice of pause frames, so NIC n (`airdma link nic`) is one that does. Between the
box and host f lies a bare cable or an emulated Wi-Fi link.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from airdma_lab import build, devices, perftest, privileges
from airdma_lab.lab import Host
from airdma_lab.pair import Pair, run_pair
from airdma_lab.program import Outcome, Program
from case import Tally

SLOW_MBIT = 60.7
"""UDP goodput of 802.11ac, 80 MHz, two streams, MCS 0."""
RATE_MBIT = 20
QUEUE = 1 << 20
HIGH, LOW = 256 << 10, 128 << 10
FRAME_BYTES = 1042
FRAMES = 3000
VETH_MBIT = 10_000
"""What a veth says of its speed."""

SEND = f"""
import json, socket, struct, sys, time
to, source, is_obedient = bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3] == "obedient"
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("eth0", 0))
udp = struct.pack("!4H", 49152, 4791, {FRAME_BYTES} - 34, 0) + bytes({FRAME_BYTES} - 42)
addresses = bytes([10, 77, 1, 1]), bytes([10, 77, 1, 2])
ip = struct.pack("!2B3H2BH4s4s", 0x45, 0, {FRAME_BYTES} - 14, 0, 0x4000, 64, 17, 0, *addresses)
total = sum(struct.unpack("!10H", ip))
total = (total & 0xffff) + (total >> 16)
ip = ip[:10] + struct.pack("!H", 0xffff - total) + ip[12:]
frame = to + source + b"\\x08\\x00" + ip + udp
wire.setblocking(False)
asked, sent, until, began = [], 0, 0.0, time.monotonic()
while sent < {FRAMES}:
    try:
        while True:
            heard, where = wire.recvfrom(2000)
            if heard[12:14] == b"\\x88\\x08" and where[2] != 4:
                quanta = struct.unpack("!H", heard[24:26])[0]
                asked.append((time.monotonic() - began, sent * {FRAME_BYTES}, heard.hex()))
                until = time.monotonic() + quanta * 512 / {VETH_MBIT}e6
    except BlockingIOError:
        pass
    if is_obedient and time.monotonic() < until:
        continue
    try:
        wire.send(frame)
        sent += 1
        # Some 60 Mb/s, and time for the box to say something.
        time.sleep(0.00005)
    except BlockingIOError:
        time.sleep(0.0005)
time.sleep(0.3)
print(json.dumps(asked))
"""
GO_BACK_N = f"""
import socket, struct, sys, time
to, source, role = bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(1, 8, 32 << 20)
try:
    wire.setsockopt(1, 33, 32 << 20)
except PermissionError:
    pass  # Root may have more than net.core.rmem_max.
wire.bind(("eth0", 0))
wire.setblocking(False)
head = to + source + b"\\x08\\x00" + struct.pack("!2B3H2BH8x", 0x45, 0, {FRAME_BYTES} - 14, 0, 0x4000, 64, 17, 0)
head += struct.pack("!4H", 4791, 4791, {FRAME_BYTES} - 34, 0)
def send(number, kind=0, room=bytes({FRAME_BYTES} - 47)):
    try:
        wire.send(head + struct.pack("!IB", number, kind) + room)
        return True
    except BlockingIOError:
        return False
def heard():
    try:
        while True:
            frame, where = wire.recvfrom(2000)
            if where[2] != 4 and frame[12:14] == b"\\x88\\x08":
                yield "pause", struct.unpack("!H", frame[24:26])[0]
            elif where[2] != 4 and frame[36:38] == b"\\x12\\xb7":
                yield struct.unpack("!IB", frame[42:47])[::-1]
    except BlockingIOError:
        return
WINDOW, PACKETS = 4096, int(sys.argv[4])
if role == "receive":
    expected, told, told_at = 0, False, 0
    while expected < PACKETS:
        for kind, number in heard():
            if number == expected:
                expected, told = expected + 1, False
                if expected % 16 == 0 or expected == PACKETS:
                    send(expected, 1, b"")
            elif number > expected and not told:
                told = send(expected, 2, b"")
            elif number < expected and number % 16 == 0:
                send(expected, 1, b"")
    for _ in range(20):
        send(expected, 1, b"")
        time.sleep(0.01)
else:
    base = following = sent = 0
    until = 0.0
    moved = began = time.monotonic()
    while base < PACKETS:
        now = time.monotonic()
        for kind, number in heard():
            if kind == "pause":
                until = now + number * 512 / {VETH_MBIT}e6
            elif number >= base:
                moved = now if number > base else moved
                base = number
                following = number if kind == 2 else max(following, number)
        if now - moved > 0.5:
            moved, following = now, base
        if now >= until and following < min(base + WINDOW, PACKETS) and send(following):
            following += 1
            sent += 1
    print(sent, time.monotonic() - began)
"""
"""Reliable delivery as a NIC has it that knows of no congestion: all that the window allows leaves
at once, and after a gap everything is sent again. It honours pause frames.
"""
TAGGED_KIND, TAG = "88b5", "8100600588b5"
"""EtherType for experiments; the same in VLAN 5 with priority 3."""
SEND_TAGGED = f"""
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
wire.bind(("eth0", 0))
for _ in range(5):
    wire.send(bytes.fromhex(sys.argv[1] + sys.argv[2] + "{TAG}") + bytes(range(100)))
"""
RECEIVE_TAGGED = f"""
import socket, struct
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(263, 8, 1)
wire.bind(("eth0", 0))
wire.settimeout(10)
count = 0
while count < 5:
    frame, told, _, _ = wire.recvmsg(2000, 200)
    tag, kind = struct.unpack("HH", told[0][2][16:20])
    if frame[12:].hex() == "{TAGGED_KIND}" + bytes(range(100)).hex():
        print(hex(kind), hex(tag))
        count += 1
"""
"""The kernel takes the tag out of a frame, and tells it beside (PACKET_AUXDATA)."""
COUNT = """
import socket
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.setsockopt(1, 8, 8 << 20)
socket.bind(("", 4791))
print("ready", flush=True)
count = 0
socket.settimeout(10)
try:
    while True:
        socket.recv(2000)
        count += 1
        socket.settimeout(2)
except TimeoutError:
    print(count)
"""


class Chain:
    """The four namespaces, for as long as the `with` block lasts."""

    def __init__(self) -> None:
        self._runtime = tempfile.TemporaryDirectory(prefix=f"airdma-{os.getpid()}-")
        self._programs: list[Program] = []
        cores = sorted(os.sched_getaffinity(0))
        ends = cores[0], cores[1 % len(cores)]
        self.h, self.n, self.x, self.f = (
            self._host(*of) for of in zip("hnxf", (1, 0, 0, 2), (*ends, *ends), strict=True)
        )

    def _host(self, name: str, number: int, core: int) -> Host:
        return Host(
            namespace=f"airdma-lab-{os.getpid()}-{name}",
            ipv4=f"10.77.1.{number}",
            ipv6=f"fd77:1::{number}",
            core=core,
            runtime=Path(self._runtime.name),
            _programs=self._programs,
        )

    def __enter__(self) -> Self:
        hosts = [self.h, self.n, self.x, self.f]
        for host in hosts:
            _run("ip", "netns", "add", host.namespace)
            quiet = "for f in all default; do echo 1 > /proc/sys/net/ipv6/conf/$f/disable_ipv6; done"
            quiet = quiet if host in (self.n, self.x) else "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad"
            _run("ip", "netns", "exec", host.namespace, "sh", "-c", quiet)
        cables = [
            ((self.h, "eth0"), (self.n, "in0")),
            ((self.n, "out0"), (self.x, "host0")),
            ((self.x, "radio0"), (self.f, "eth0")),
        ]
        for (one, left), (other, right) in cables:
            peer = ["peer", "name", right, "netns", other.namespace]
            _run("ip", "link", "add", left, "netns", one.namespace, "type", "veth", *peer)
        for (one, left), (other, right) in cables:
            _run("ip", "-n", one.namespace, "link", "set", left, "up")
            _run("ip", "-n", other.namespace, "link", "set", right, "up")
        for host in (self.h, self.f):
            _run("ip", "-n", host.namespace, "address", "add", f"{host.ipv4}/24", "dev", "eth0")
            _run("ip", "-n", host.namespace, "address", "add", f"{host.ipv6}/64", "dev", "eth0", "nodad")
            _wait(partial(_is_up, host, "eth0"))
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
        for host in (self.h, self.n, self.x, self.f):
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True, check=False)
        self._runtime.cleanup()

    @contextmanager
    def nic(self) -> Iterator[Program]:
        """The NIC of host h, which honours pause frames."""
        with self._link(self.n, "nic", "--inside", "in0", "--cable", "out0") as program:
            yield program

    @contextmanager
    def box(self, *words: str) -> Iterator[Program]:
        """The box under test; it says what it did when it is stopped."""
        arguments = ["--host", "host0", "--radio", "radio0", "--json", *words]
        with self._link(self.x, "controller", *arguments) as program:
            yield program

    @contextmanager
    def _link(self, host: Host, *words: str) -> Iterator[Program]:
        program = host.start([str(build.binary()), "link", *words])
        sockets = Path(f"/proc/{program.pid}/net/packet")
        inside = host.namespace_path.stat().st_ino
        entered = Path(f"/proc/{program.pid}/ns/net")
        _wait(lambda: entered.stat().st_ino == inside and len(sockets.read_text("ascii").splitlines()) == 3)
        try:
            yield program
        finally:
            host.forget(program)

    @contextmanager
    def air(self, *words: str) -> Iterator[None]:
        """An emulated Wi-Fi link in place of the cable between box and host f."""
        places = f"{self.x.namespace}:radio0,{self.f.namespace}:eth0"
        _run(str(build.binary()), "link", "up", "--name", "box", "--between", places, *words)
        try:
            yield
        finally:
            _run(str(build.binary()), "link", "down", "box")


def run(tally: Tally, folder: Path) -> None:
    """Runs all of them, out of the sight of other links of this user."""
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    tests: list[tuple[str, Callable[[], list[str]]]] = [
        ("frames of all kinds pass, both ways", _passes),
        ("pause frames are right, and come when they are due", _pauses),
        ("a sender that ignores them loses frames here, and not in the radio's queue", _ignores),
        ("a go-back-N sender sends each packet once; without the box, several times", _collapses),
        (
            "with the box, the radio's queue drops nothing of ib_write_bw; without, it does",
            lambda: _real_program(folder),
        ),
        ("what cannot be is said", _refusals),
    ]
    for name, test in tests:
        started = time.monotonic()
        tally.record(f"airdma link controller: {name}", test(), time.monotonic() - started)


def done(program: Program) -> dict[str, Any]:
    """What the box or the NIC said at its end."""
    outcome = program.stop()
    lines = outcome.stdout.splitlines()
    return dict(json.loads(lines[-1])) if outcome.ok and lines else {"failed": outcome.explain()}


def _passes() -> list[str]:
    with Chain() as chain, chain.nic(), chain.box("--rate", "400") as box:
        complaints = []
        for family in (4, 6):
            # Neither segmented nor summed until it leaves the box.
            client = ["iperf3", "-c", chain.f.address(family), "-n", "8M"]
            iperf = run_pair(chain.f, chain.h, ["iperf3", "-s", "-1"], client, port=5201)
            pair = _write(chain, 20, {}, family)
            complaints += [one.explain() for one in (iperf, pair) if not one.ok]
        complaints += _tagged(chain)
        counted = done(box)
    fields = ("roce_frames", "other_frames", "returned_frames")
    silent = [field for field in fields if not counted.get(field)]
    lost = [field for field in ("refused", "missed", "dropped_here") if counted.get(field, 1)]
    return complaints + ([f"{silent} are 0, {lost} are not: {counted}"] if silent or lost else [])


def _tagged(chain: Chain) -> list[str]:
    receiver = chain.f.start(["python3", "-c", RECEIVE_TAGGED])
    receiver.wait_idle(5)
    to, source = (_mac(host, "eth0").hex() for host in (chain.f, chain.h))
    sender = chain.h.run(["python3", "-c", SEND_TAGGED, to, source])
    received = receiver.wait(10)
    chain.f.forget(receiver)
    whole = received.stdout.splitlines() == ["0x8100 0x6005"] * 5
    return [] if whole else [sender.explain(), received.explain()]


def _sender(chain: Chain, manner: str) -> tuple[int, list[tuple[float, int, bytes]], Outcome]:
    """Frames of RoCE straight to the box, faster than the radio; how many arrived, and what the box
    asked for.
    """
    counter = chain.f.start(["python3", "-c", COUNT])
    if not counter.wait_listening(4791, "udp", 10):
        raise RuntimeError(counter.stop().explain())
    to, source = (_mac(host, "eth0") for host in (chain.f, chain.h))
    outcome = chain.h.run(["python3", "-c", SEND, to.hex(), source.hex(), manner])
    arrived = counter.wait(20)
    asked = json.loads(outcome.stdout) if outcome.ok else []
    chain.f.forget(counter)
    return int(arrived.stdout.split()[-1]), [(at, sent, bytes.fromhex(frame)) for at, sent, frame in asked], outcome


def _pauses() -> list[str]:
    with Chain() as chain, _straight(chain), chain.box("--rate", str(RATE_MBIT), "--queue", str(QUEUE)) as box:
        arrived, asked, outcome = _sender(chain, "obedient")
        counted = done(box)
        source = _mac(chain.x, "host0")
    if not asked:
        return ["the host was never asked to stop", outcome.explain(), str(counted)]
    complaints = [] if arrived == FRAMES else [f"{arrived} of {FRAMES} arrived"]
    stop, go = (_pfc(source, quanta) for quanta in (0xFFFF, 0))
    strange = [frame.hex() for _, _, frame in asked if frame not in (stop, go)]
    complaints += [f"no such frame: {strange[:3]}"] if strange else []
    first_at, first_sent, first = asked[0]
    if first != stop or first_sent < HIGH:
        complaints.append(f"the first after {first_sent} bytes, which is below the high mark: {first.hex()}")
    # From the high mark to the low one at the radio's rate; a stop lasts 3.4 ms by itself.
    least_s = (HIGH - LOW) * 8 / (RATE_MBIT * 1e6)
    go_at = next((at for at, _, frame in asked if frame == go), 0.0)
    if go_at - first_at < 0.7 * least_s:
        complaints.append(f"stopped at {first_at} s, going at {go_at} s: {least_s} s are needed")
    wrong = [field for field in ("dropped_here", "missed", "refused") if counted.get(field, 1)]
    wrong += [field for field in ("stops", "renewals", "resumes") if not counted.get(field)]
    pauses = [counted.get("stops", 0) + counted.get("renewals", 0), counted.get("resumes", 0)]
    heard = [sum(frame == of for _, _, frame in asked) for of in (stop, go)]
    # The sender no longer counts what the box asks for while it ends.
    complaints += [] if 0 <= pauses[0] - heard[0] <= 3 else [f"{heard} heard of {pauses}"]
    mean_mbit = FRAMES * FRAME_BYTES * 8 / 1e6 / asked[-1][0]
    complaints += [] if mean_mbit > 0.9 * RATE_MBIT else [f"{mean_mbit} of {RATE_MBIT} Mb/s"]
    return complaints + ([f"{wrong}: {counted}"] if wrong else [])


def _ignores() -> list[str]:
    with Chain() as chain, _straight(chain), chain.box("--rate", str(RATE_MBIT), "--queue", str(QUEUE)) as box:
        arrived, _, outcome = _sender(chain, "stubborn")
        counted = done(box)
    lost = counted.get("dropped_here", 0) + counted.get("missed", 0)
    good = lost > 0 and arrived + lost == FRAMES and counted["queue_peak_bytes"] <= QUEUE
    return [] if good else [f"{arrived} of {FRAMES} arrived: {counted}", outcome.explain()]


@contextmanager
def _straight(chain: Chain) -> Iterator[None]:
    """Host h at the box without the NIC between: eth0 is the cable's end."""
    _run("ip", "-n", chain.h.namespace, "link", "delete", "eth0")
    _run("ip", "-n", chain.x.namespace, "link", "delete", "host0")
    peer = ["peer", "name", "host0", "netns", chain.x.namespace]
    _run("ip", "link", "add", "eth0", "netns", chain.h.namespace, "type", "veth", *peer)
    _run("ip", "-n", chain.h.namespace, "link", "set", "eth0", "up")
    _run("ip", "-n", chain.x.namespace, "link", "set", "host0", "up")
    yield


def measure(chain: Chain, words: list[str], environment: dict[str, str], messages: int) -> tuple[Pair, dict[str, Any]]:
    """`ib_write_bw` of 64 KiB over NIC and box; what it says and what the box counted."""
    with chain.nic(), chain.box(*words) as box:
        pair = _write(chain, messages, environment)
        return pair, done(box)


SLOW = ["--profile", "wifi5-80", "--mcs", "0", "--snr", "60"]
NO_BOX = ["--rate", "100000", "--pfc", "0"]
"""Passes everything at once, as a bridge does: the priority that it stops is not used.
"""


def _collapses() -> list[str]:
    mbit, times, counted = go_back_n([], SLOW, 8000)
    without_mbit, without_times, passed = go_back_n(NO_BOX, SLOW, 8000)
    wrong = [field for field in ("dropped_here", "dropped_by_radio", "missed", "refused") if counted.get(field, 1)]
    complaints = [f"{wrong}, {mbit} Mb/s, each packet {times} times: {counted}"] if wrong or times > 1.02 else []
    good = without_times > 1.5 and passed.get("dropped_by_radio") and mbit > without_mbit
    return complaints + (
        [] if good else [f"{mbit} Mb/s; without {without_mbit}, each packet {without_times} times: {passed}"]
    )


def _real_program(folder: Path) -> list[str]:
    profile = folder / "short.toml"
    text = subprocess.run(
        [str(build.binary()), "link", "profiles", "wifi5-80"], capture_output=True, text=True, check=True
    )
    # 37 ms at this rate.
    profile.write_text(re.sub(r"packets_max = \d+", "packets_max = 256", text.stdout), encoding="utf-8")
    # As a NIC that knows of no congestion: what is posted leaves at once, more than the radio's
    # queue holds.
    environment = {"AIRDMA_WINDOW_BYTES": str(1 << 20)}
    with Chain() as chain, chain.air("--profile", str(profile), "--mcs", "0", "--snr", "60"):
        with_box, counted = measure(chain, [], environment, 200)
        _, passed = measure(chain, NO_BOX, environment, 200)
    complaints = [] if with_box.ok else [with_box.explain()]
    wrong = [field for field in ("dropped_here", "dropped_by_radio", "missed") if counted.get(field, 1)]
    complaints += [f"with the box {wrong}: {counted}"] if wrong else []
    complaints += [] if counted.get("stops") else [f"the sender was never stopped: {counted}"]
    complaints += [] if passed.get("dropped_by_radio") else [f"without it nothing was dropped: {passed}"]
    mbit = bandwidth_mbit(with_box)
    return complaints + ([] if mbit > 0.7 * SLOW_MBIT else [f"{mbit} Mb/s of {SLOW_MBIT}: {counted}"])


def bandwidth_mbit(pair: Pair) -> float:
    return perftest.bandwidth_gbps(pair.client.stdout if pair.client else "").get(65536, 0.0) * 1000


def _write(chain: Chain, messages: int, environment: dict[str, str], family: int = 4) -> Pair:
    words = [
        "ib_write_bw",
        "-d",
        "airdma_eth0",
        "-s",
        "65536",
        "-n",
        str(messages),
        "-u",
        "16",
        "-F",
        "--report_gbits",
        "-x",
    ]
    server, client = ([*words, str(devices.gid_index(host, family))] for host in (chain.f, chain.h))
    return run_pair(
        chain.f,
        chain.h,
        build.with_airdma(server),
        build.with_airdma([*client, chain.f.ipv4]),
        port=perftest.PORT,
        environment=environment,
        timeout_s=60,
    )


def _refusals() -> list[str]:
    with Chain() as chain:
        cases = [
            (["--host", "host0", "--radio", "host0"], "two interfaces"),
            (["--host", "host9", "--radio", "radio0"], "looking for the interface host9"),
            (["--host", "host0", "--radio", "radio0"], "--rate MBIT"),
            (["--host", "host0", "--radio", "radio0", "--rate", "-1"], "above 0"),
            (["--host", "host0", "--radio", "radio0", "--rate", "9", "--pfc", "8"], "between 0 and 7"),
            (["--host", "host0", "--radio", "radio0", "--rate", "9", "--queue", "1000"], "or more"),
        ]
        complaints = []
        for words, expected in cases:
            result = chain.x.run([str(build.binary()), "link", "controller", *words])
            if result.returncode == 0 or expected not in result.stderr:
                complaints.append(f"{words}: {result.explain()}")
        with chain.box("--rate", "9") as box:
            _run("ip", "-n", chain.x.namespace, "link", "delete", "radio0")
            outcome = box.wait(5)
            complaints += [] if "radio0" in outcome.stderr else [f"the radio is gone: {outcome.explain()}"]
    return complaints


def _pfc(source: bytes, quanta: int) -> bytes:
    """A frame that stops priority 3 for `quanta`, laid out by hand from IEEE 802.3 annex 31D."""
    head = bytes.fromhex("0180c2000001") + source + bytes.fromhex("880801010008")
    return head + bytes(6) + quanta.to_bytes(2, "big") + bytes(8) + bytes(26)


def _mac(host: Host, interface: str) -> bytes:
    shown = json.loads(_run("ip", "-j", "-n", host.namespace, "link", "show", interface))
    return bytes.fromhex(shown[0]["address"].replace(":", ""))


def _run(*argv: str) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {result.stdout}{result.stderr}")
    return result.stdout


def _is_up(host: Host, interface: str) -> bool:
    return "state UP" in _run("ip", "-n", host.namespace, "link", "show", interface)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def go_back_n(words: list[str], air: list[str], packets: int) -> tuple[float, float, dict[str, Any]]:
    """Mb/s that arrived, how often each packet was sent, and what the box counted."""
    with Chain() as chain, _straight(chain), chain.air(*air), chain.box(*words) as box:
        ends = [_mac(host, "eth0").hex() for host in (chain.f, chain.h)]
        receiver = chain.f.start(["python3", "-c", GO_BACK_N, ends[1], ends[0], "receive", str(packets)])
        receiver.wait_idle(0.5)
        outcome = chain.h.run(["python3", "-c", GO_BACK_N, *ends, "send", str(packets)], timeout_s=60)
        chain.f.forget(receiver)
        if not outcome.ok:
            raise RuntimeError(outcome.explain())
        sent, seconds = map(float, outcome.stdout.split())
        return packets * FRAME_BYTES * 8 / seconds / 1e6, sent / packets, done(box)


def table() -> None:
    """The figures of docs/design/023-controller-box.md: medians of three, with the box and without
    in turns.
    """
    privileges.enter()
    print("| sender | scheme | | Mb/s | each packet sent | dropped by the radio's queue | dropped by the box | stops |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for mcs, packets in [("0", 20_000), ("2", 60_000)]:
        _row("go-back-N, 4 MiB", mcs, partial(go_back_n, packets=packets))
    for mcs, window, messages in [("0", 1 << 20, 300), ("4", 4 << 20, 2000), ("4", 256 << 10, 2000)]:
        name = f"`ib_write_bw`, {window >> 10} KiB"
        _row(name, mcs, partial(_measured, window=window, messages=messages))


def _measured(words: list[str], air: list[str], window: int, messages: int) -> tuple[float, float, dict[str, Any]]:
    with Chain() as chain, chain.air(*air):
        pair, counted = measure(chain, words, {"AIRDMA_WINDOW_BYTES": str(window)}, messages)
    # 1,082 bytes for 1,024 of data, and what the program says before and after.
    return bandwidth_mbit(pair), counted["roce_bytes"] / (messages * 64 * 1082), counted


def _row(name: str, mcs: str, measured: Callable[[list[str], list[str]], tuple[float, float, dict[str, Any]]]) -> None:
    found: dict[str, list[list[float]]] = {"with": [], "without": []}
    for _ in range(3):
        for which, words in [("with", []), ("without", NO_BOX)]:
            mbit, times, counted = measured(words, ["--profile", "wifi5-80", "--mcs", mcs, "--snr", "60"])
            counts = [counted[field] for field in ("dropped_by_radio", "dropped_here", "stops")]
            found[which].append([mbit, times, *counts])
    for which, runs in found.items():
        mbit, times, *counts = (statistics.median(values) for values in zip(*runs, strict=True))
        cells = [f"{mbit:.0f}", f"{times:.2f}", *(f"{count:.0f}" for count in counts)]
        print(f"| {name} | MCS {mcs} | {which} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    table()
