"""`airdma top` and `airdma capture` beside unmodified programs: rates, a screen, packets."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airdma_lab import build, devices, perftest
from airdma_lab.lab import INTERFACE, Host, Lab
from airdma_lab.program import Outcome, Program
from case import Tally

MESSAGE_BYTES = 65536
RUN_S = 6
"""How long perftest measures; it leaves out the first and the last two seconds."""
NEAR = 0.5
"""Share by which a rate of two seconds may differ from perftest's, on a machine that others use."""
_LIMIT_S = 40.0
_SOON_S = 5.0

OTHER_VERSION = """
import pathlib, socket, sys
index = pathlib.Path(sys.argv[1]).read_text().strip()
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(f"\\0airdma-view-{index}-00ff")
    listener.listen()
    print("listening", flush=True)
    while True:
        viewer, _ = listener.accept()
        if viewer.recv(4096):
            viewer.sendall(b'{"version":7,"airdma":"9.1.0","devices":[]}\\n')
"""
"""A device of an airdma that does not exist yet."""
FILLED_UP = """
mount -t tmpfs -o size=512k tmpfs "$1" || exit 99
"$2" capture "$1/file.pcapng" --seconds 20
status=$?
tshark -n -r "$1/file.pcapng" > "$1/../packets" 2> "$1/../faults"
exit $status
"""

ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """All of it."""
    folder.mkdir(parents=True, exist_ok=True)
    tests: list[tuple[str, Callable[[Lab, Path], list[str]]]] = [
        ("top shows the rate that ib_write_bw reports, at both ends", _rate),
        ("a process that is stopped is shown, and delays nothing", _stopped),
        ("a process of another version is a line that says which", _other_version),
        ("a screen of 40 columns, which its signal restores", _screen),
        ("a terminal without a screen, and a pipe", _no_screen),
        ("packets at both ends are the same, and their dissector finds no fault", _packets),
        ("packets of one queue pair, cut, up to a limit", _filtered),
        ("a full disk, a directory, a terminal", _unwritable),
        ("a disk that fills up in the middle", _filled_up),
        ("a pipe whose reader ends while no packet comes", _unread),
    ]
    for name, test in tests:
        if test in (_packets, _filtered, _filled_up) and not shutil.which("tshark"):
            tally.skip(name, "no tshark")
            continue
        started = time.monotonic()
        tally.record(name, test(lab, folder), time.monotonic() - started)


@dataclass
class Traffic:
    """A pair of programs that runs."""

    server: Program
    client: Program


@contextlib.contextmanager
def _traffic(lab: Lab, *words: str, name: str = "ib_write_bw") -> Iterator[Traffic]:
    index = str(devices.gid_index(lab.b, 4))
    argv = build.with_airdma([name, "-s", str(MESSAGE_BYTES), "-x", index, "--report_gbits", *words])
    server = lab.b.start(argv)
    server.wait_listening(perftest.PORT, "tcp", _LIMIT_S)
    client = lab.a.start([*argv, lab.b.ipv4])
    try:
        yield Traffic(server, client)
    finally:
        for host, program in ((lab.a, client), (lab.b, server)):
            if not program.has_exited():
                program.kill()
            host.forget(program)


def _airdma(host: Host, *words: str, timeout_s: float = _LIMIT_S) -> Outcome:
    return host.run([str(build.binary()), *words], timeout_s=timeout_s)


def _device(outcome: Outcome) -> dict[str, Any]:
    assert outcome.ok, outcome.explain()
    (device,) = json.loads(outcome.stdout)["devices"]
    return dict(device)


def _wait_for_packets(host: Host) -> None:
    """Until packets leave the host, at thousands a second."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        device = _device(_airdma(host, "top", "--once", "--json", "--interval", "0.2"))
        if device["tx_packets_per_second"] > 1000:
            return
    raise AssertionError("no packets left the host")


def _rate(lab: Lab, _: Path) -> list[str]:
    with _traffic(lab, "-D", str(RUN_S), "-q", "2") as traffic:
        _wait_for_packets(lab.a)
        time.sleep(2)
        sent = _device(_airdma(lab.a, "top", "--once", "--json", "--interval", "2"))
        received = _device(_airdma(lab.b, "top", "--once", "--json", "--device", INTERFACE, "--interval", "0.5"))
        # Soon: the programs end.
        text = _airdma(lab.a, "top", "--once", "--interval", "0.2")
        outcome = traffic.client.wait(_LIMIT_S)
    if not outcome.ok:
        return [outcome.explain()]
    reported = perftest.bandwidth_gbps(outcome.stdout)[MESSAGE_BYTES]
    seen = sent["tx_bytes_per_second"] * 8e-9
    complaints = []
    if not reported * (1 - NEAR) < seen < reported * (1 + NEAR) + 0.1:
        complaints.append(f"top showed {seen:.3f} Gb/s, and ib_write_bw {reported:.3f}")
    complaints += _process_complaints("the client", sent, lab.b.ipv4, "tx_packets_per_second")
    complaints += _process_complaints("the server", received, lab.a.ipv4, "rx_packets_per_second")
    if "ib_write_bw" not in text.stdout or "\x1b" in text.stdout:
        complaints.append(f"the text is {text.stdout!r}")
    return complaints


def _process_complaints(who: str, device: dict[str, Any], peer: str, packets: str) -> list[str]:
    (process,) = device["processes"]
    complaints = []
    if process["program"] != "ib_write_bw" or process["queue_pairs_total"] != 2:
        complaints.append(f"{who} is shown as {process}")
    pairs = process["queue_pairs"]
    if {pair["peer"] for pair in pairs} != {peer} or not {pair["state"] for pair in pairs} <= {"rtr", "rts"}:
        complaints.append(f"the queue pairs of {who} are shown as {pairs}")
    # Sequence numbers count no packet twice, and the process counts all.
    by_number = sum(pair[packets] for pair in pairs)
    if not process[packets] * 0.7 < by_number < process[packets] * 1.3:
        complaints.append(f"the queue pairs of {who} have {by_number} packets/s of {process[packets]}")
    return complaints


def _stopped(lab: Lab, _: Path) -> list[str]:
    with _traffic(lab, "-D", str(RUN_S)) as traffic:
        _wait_for_packets(lab.a)
        os.kill(traffic.client.pid, signal.SIGSTOP)
        started = time.monotonic()
        outcome = _airdma(lab.a, "top", "--once", "--json", "--interval", "0.2")
        took = time.monotonic() - started
        os.kill(traffic.client.pid, signal.SIGCONT)
        (process,) = _device(outcome)["processes"]
    complaints = [] if took < _SOON_S else [f"top took {took:.1f} s"]
    if process["answers"] or process["waits_for"] != "does not answer":
        complaints.append(f"a stopped process is shown as {process}")
    return complaints


def _other_version(lab: Lab, _: Path) -> list[str]:
    other = lab.a.start(["python3", "-c", OTHER_VERSION, f"/sys/class/net/{INTERFACE}/ifindex"])
    deadline = time.monotonic() + _SOON_S
    listed = ["grep", "-q", "@airdma-view-.*-00ff", "/proc/net/unix"]
    while not lab.a.run(listed).ok and time.monotonic() < deadline:
        time.sleep(0.05)
    json_outcome = _airdma(lab.a, "top", "--once", "--json", "--interval", "0.2")
    text = _airdma(lab.a, "top", "--once", "--interval", "0.2")
    capture = _airdma(lab.a, "capture", "/dev/null", "--qp", "17", "--seconds", "1")
    other.kill()
    lab.a.forget(other)
    (process,) = _device(json_outcome)["processes"]
    complaints = []
    if process["answers"] or process["version"] != "airdma 9.1.0" or process["waits_for"] != "not understood":
        complaints.append(f"it is shown as {process}")
    lines = [line for line in text.stdout.splitlines() if "9.1.0" in line]
    if len(lines) != 1 or str(process["pid"]) not in lines[0] or "not understood" not in lines[0]:
        complaints.append(f"the text is {text.stdout!r}")
    if not capture.ok or "airdma 9.1.0" not in capture.stderr:
        complaints.append(f"a capture: {capture.explain()}")
    return complaints


class Terminal:
    """`airdma top` on a terminal of its own."""

    def __init__(self, host: Host, columns: int, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 12, columns, 0, 0))
        self._before = termios.tcgetattr(slave)
        self._slave = slave
        self._process = subprocess.Popen(
            [*host.inside(), str(build.binary()), "top", "--interval", "0.2"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm", **environment},
            start_new_session=True,
        )
        self.shown = b""

    def read_until(self, wanted: bytes) -> bool:
        """False if it does not come soon."""
        deadline = time.monotonic() + _SOON_S
        while wanted not in self.shown and time.monotonic() < deadline:
            if select.select([self._master], [], [], 0.1)[0]:
                self.shown += os.read(self._master, 65536)
        return wanted in self.shown

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, bool]:
        """Its exit status, and whether the terminal is as it was."""
        try:
            status = self._process.wait(_SOON_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if ENTER_SCREEN in self.shown:
            self.read_until(LEAVE_SCREEN)
        is_restored = termios.tcgetattr(self._slave) == self._before
        os.close(self._slave)
        os.close(self._master)
        return status, is_restored


def _screen(lab: Lab, _: Path) -> list[str]:
    complaints = []
    ends: tuple[tuple[str, Callable[[Terminal], None], int], ...] = (
        ("q", lambda terminal: terminal.press(b"\x1b[Bdq"), 0),
        ("Ctrl-C", lambda terminal: terminal.press(b"\x03"), 0),
        ("SIGTERM", lambda terminal: terminal.signal(signal.SIGTERM), 128 + signal.SIGTERM),
        ("SIGINT", lambda terminal: terminal.signal(signal.SIGINT), 128 + signal.SIGINT),
    )
    for name, end, status in ends:
        terminal = Terminal(lab.a, 40, {"NO_COLOR": "1"})
        if not terminal.read_until(f"airdma_{INTERFACE}".encode()):
            complaints.append(f"{name}: the screen shows {terminal.shown!r}")
        if ENTER_SCREEN not in terminal.shown:
            complaints.append(f"{name}: there is no screen")
        end(terminal)
        found, is_restored = terminal.end()
        if found != status or not is_restored or LEAVE_SCREEN not in terminal.shown:
            complaints.append(f"{name}: status {found}, restored {is_restored}, end {terminal.shown[-60:]!r}")
        if re.search(rb"\x1b\[([0-9;]*;)?[34][0-8][;m]", terminal.shown):
            complaints.append(f"{name}: a screen without colour has one: {terminal.shown!r}")
    return complaints


def _no_screen(lab: Lab, _: Path) -> list[str]:
    complaints = []
    terminal = Terminal(lab.a, 80, {"TERM": "dumb"})
    said = terminal.read_until(b"airdma top --once")
    status, _restored = terminal.end()
    if not said or status != 1 or ENTER_SCREEN in terminal.shown:
        complaints.append(f"TERM=dumb: status {status}, {terminal.shown!r}")
    piped = _airdma(lab.a, "top")
    if piped.returncode != 1 or "--once" not in piped.stderr:
        complaints.append(f"a pipe: {piped.explain()}")
    unknown = _airdma(lab.a, "top", "--once", "--device", "nosuch")
    if unknown.returncode != 1 or "nosuch" not in unknown.stderr:
        complaints.append(f"an unknown device: {unknown.explain()}")
    shell = f"{build.binary()} top --json --interval 0.1 | head -2 | wc -l"
    ended = lab.a.run(["sh", "-c", shell], timeout_s=_LIMIT_S)
    if not ended.ok or ended.stdout.strip() != "2":
        complaints.append(f"its reader ended: {ended.explain()}")
    return complaints


def _fields(file: Path, *names: str, only: str = "") -> list[tuple[str, ...]]:
    fields = [word for name in names for word in ("-e", name)]
    command = ["tshark", "-n", "-r", str(file), "-T", "fields", "-E", "separator=|", *fields]
    found = subprocess.run([*command, *(["-Y", only] if only else [])], capture_output=True, text=True, check=True)
    return [tuple(line.split("|")) for line in found.stdout.splitlines()]


def _packets(lab: Lab, folder: Path) -> list[str]:
    with contextlib.ExitStack() as stack:
        files = [folder / "a.pcapng", folder / "b.pcapng"]
        captures = [
            host.start([str(build.binary()), "capture", str(file)])
            for host, file in zip((lab.a, lab.b), files, strict=True)
        ]
        traffic = stack.enter_context(_traffic(lab, "-n", "100", name="ib_write_lat"))
        outcome = traffic.client.wait(_LIMIT_S)
        ends = [capture.stop() for capture in captures]
        for host, capture in zip((lab.a, lab.b), captures, strict=True):
            host.forget(capture)
    if not outcome.ok or not all(end.ok for end in ends):
        return [outcome.explain(), *(end.explain() for end in ends)]
    wanted = ("ip.src", "ip.dst", "udp.dstport", "infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.bth.opcode")
    sent, received = [_fields(file, *wanted, only=f"ip.src == {lab.a.ipv4}") for file in files]
    # That a program ends is nothing to report.
    complaints = [end.stderr for end in ends if " 0 lost" not in end.stderr or "sends no" in end.stderr]
    if len(sent) < 1000:
        complaints.append(f"there are {len(sent)} packets")
    # The captures begin and end at different times.
    both = set(sent) & set(received)
    if len(both) < 0.9 * len(set(sent)):
        complaints.append(f"of {len(set(sent))} packets that left {len(both)} arrived")
    if {packet[2] for packet in sent} != {"4791"}:
        complaints.append("not all packets are for UDP port 4791")
    faults = _fields(files[0], "_ws.expert.message", only="_ws.malformed || _ws.expert.severity == error")
    return complaints + [f"tshark: {fault}" for fault in faults[:5]]


def _filtered(lab: Lab, folder: Path) -> list[str]:
    file = folder / "filtered.pcapng"
    with _traffic(lab, "-D", str(RUN_S), "-q", "2"):
        _wait_for_packets(lab.a)
        (process,) = _device(_airdma(lab.a, "top", "--once", "--json", "--interval", "0.2"))["processes"]
        pair, _other = process["queue_pairs"]
        limits = ["--snap", "64", "--packets", "500", "--seconds", "20"]
        outcome = _airdma(lab.a, "capture", str(file), "--qp", hex(pair["number"]), *limits)
    if not outcome.ok:
        return [outcome.explain()]
    packets = _fields(file, "infiniband.bth.destqp", "frame.cap_len", "frame.len")
    numbers = {int(number, 16) for number, _cut, _len in packets if number}
    complaints = []
    if len(packets) != 500:
        complaints.append(f"there are {len(packets)} packets")
    if numbers != {pair["number"], pair["peer_number"]}:
        complaints.append(f"packets are for {numbers}, and the queue pair is {pair}")
    if max(int(cut) for _number, cut, _len in packets) != 64 or max(int(size) for *_, size in packets) < 1000:
        complaints.append(f"lengths are {packets[:3]}")
    return complaints


def _unwritable(lab: Lab, folder: Path) -> list[str]:
    complaints = []
    for name, file, wanted in (
        ("a full disk", "/dev/full", "No space left on device"),
        ("a directory", str(folder), "directory"),
    ):
        outcome = _airdma(lab.a, "capture", file, "--seconds", "1")
        if outcome.returncode != 1 or wanted not in outcome.stderr:
            complaints.append(f"{name}: {outcome.explain()}")
    return complaints


def _filled_up(lab: Lab, folder: Path) -> list[str]:
    room = folder / "room"
    room.mkdir(exist_ok=True)
    with _traffic(lab, "-D", str(RUN_S)) as traffic:
        _wait_for_packets(lab.a)
        command = ["unshare", "--mount", "sh", "-c", FILLED_UP, "sh", str(room), str(build.binary())]
        outcome = lab.a.run(command, timeout_s=_LIMIT_S)
        ended = traffic.client.wait(_LIMIT_S)
    complaints = [] if ended.ok else [f"the program that was looked at: {ended.explain()}"]
    said = re.search(r"cannot write \S+, which has (\d+) packets: No space left on device", outcome.stderr)
    if outcome.returncode != 1 or not said or "panic" in outcome.stderr:
        return [*complaints, outcome.explain()]
    packets = len((folder / "packets").read_text(encoding="utf-8").splitlines())
    if packets != int(said[1]) or packets < 10:
        complaints.append(f"it says {said[0]!r}, and the file has {packets}")
    faults = (folder / "faults").read_text(encoding="utf-8")
    if "cut short" in faults:
        complaints.append(f"tshark: {faults}")
    return complaints


def _unread(lab: Lab, _: Path) -> list[str]:
    started = time.monotonic()
    # `head` ends once it has the first block, and then there is nothing to write.
    command = f"{build.binary()} capture - --seconds 20 | head -c 8 | wc -c"
    outcome = lab.a.run(["sh", "-c", command], timeout_s=_LIMIT_S)
    took = time.monotonic() - started
    if not outcome.ok or outcome.stdout.strip() != "8" or "0 packets" not in outcome.stderr or took > _SOON_S:
        return [f"after {took:.1f} s: {outcome.explain()}"]
    return []
