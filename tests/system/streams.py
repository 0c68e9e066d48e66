"""`airdma stream send` and `airdma stream recv`: frames of several devices between two hosts."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from airdma_lab import build
from airdma_lab.lab import INTERFACE, Host, Lab
from case import Tally
from file_transfer import CODE, OK, UNKNOWN, Event, Side, ended

WIDTH, HEIGHT = 64, 48
FRAME_BYTES = WIDTH * HEIGHT * 3 // 2
FRAMES = 40
SILENCE_S = 12
"""A second until an idle end asks, 6.2 s without an answer (026), and some for a busy machine."""


class Bench:
    """Two users on two hosts, with a directory for what arrives."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir(parents=True)
        self._count = 0

    def recv(self, *words: str, before: str = "") -> Side:
        """Waits until it listens."""
        side = self._start(self.lab.b, f"{before}exec {_command('recv', '--code', CODE, *words)}")
        side.wait_event("listening")
        return side

    def send(self, *words: str, code: str = CODE, before: str = "", to: str = "") -> Side:
        by_code = ["--code", code] if code else []
        command = _command("send", "--to", to or self.lab.b.ipv4, *by_code, *words)
        return self._start(self.lab.a, f"{before}exec {command}")

    def _start(self, host: Host, command: str) -> Side:
        self._count += 1
        user = self.folder / f"home-{host.namespace[-1]}"
        environment = {"AIRDMA_HOME": str(user), "AIRDMA_CODE": ""}
        return Side(host, self.folder / f"{self._count}.json", command, environment)


def _command(which: str, *words: str) -> str:
    return shlex.join([str(build.binary()), "stream", which, "--json", *words])


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """All of it."""
    tests: list[tuple[str, Callable[[Bench], list[str]]]] = [
        ("recordings of three devices, by a code and by known keys", _recordings),
        ("a pipe to a pipe", _pipes),
        ("frames of one length", _raw),
        ("test patterns at a rate", _patterns),
        ("a sender that is killed and started again", _killed),
        ("a receiver that is killed and started again", _receiver_killed),
        ("the link is down for a while", _down),
        ("a network that is gone while no frame comes", _silent),
        ("an interface that is removed and comes again", _interface_again),
        ("the wrong code", _wrong_code),
        ("a sender of files at the port of streams", _files),
        ("from FFmpeg to FFmpeg, by pipes", _ffmpeg),
    ]
    for number, (name, test) in enumerate(tests):
        # Where tests may not be skipped it fails.
        if test is _ffmpeg and not shutil.which("ffmpeg") and os.environ.get("CI") != "true":
            tally.skip(f"airdma stream: {name}", "no ffmpeg (Debian package ffmpeg)")
            continue
        started = time.monotonic()
        try:
            complaints = test(Bench(lab, folder / f"streams-{number}"))
        except AssertionError as error:
            complaints = [str(error)]
        tally.record(f"airdma stream: {name}", complaints, time.monotonic() - started)


def _recording(path: Path, seed: int, frames: int = FRAMES) -> Path:
    """A recording of noise: YUV4MPEG2."""
    noise = random.Random(seed)
    header = f"YUV4MPEG2 W{WIDTH} H{HEIGHT} F200:1 Ip A1:1 C420jpeg\n".encode()
    path.write_bytes(header + b"".join(b"FRAME\n" + noise.randbytes(FRAME_BYTES) for _ in range(frames)))
    return path


def _last(side: Side) -> Event:
    return side.events("end")[-1]


def _recordings(bench: Bench) -> list[str]:
    recordings = [_recording(bench.folder / f"{device}.y4m", device) for device in range(3)]
    complaints: list[str] = []
    for code in (CODE, ""):
        receiver = bench.recv("--checksums", "--blocks", "4", "--out", f"{bench.out}/{{device}}.y4m")
        sender = bench.send(*map(str, recordings), code=code)
        complaints += ended(sender, OK) + ended(receiver, OK)
        if complaints:
            return complaints
        for device, recording in enumerate(recordings):
            arrived = bench.out / f"{device}.y4m"
            complaints += [] if arrived.read_bytes() == recording.read_bytes() else [f"device {device} differs"]
            arrived.unlink()
        devices = _last(receiver)["devices"]
        counts = [(device["frames"], device["missing"], device["repeated"]) for device in devices]
        complaints += [] if counts == [(FRAMES, 0, 0)] * 3 else [f"counted: {devices}"]
        refused = _last(receiver)["refused"]
        complaints += [f"refused: {refused}"] if any(refused.values()) else []
    return complaints


def _pipes(bench: Bench) -> list[str]:
    recording = _recording(bench.folder / "in.y4m", 7)
    out = bench.out / "out.y4m"
    receiver = bench.recv("--out", str(out))
    sender = bench.send("-", before=f"cat {shlex.quote(str(recording))} | ")
    complaints = ended(sender, OK) + ended(receiver, OK)
    return complaints or ([] if out.read_bytes() == recording.read_bytes() else ["it differs"])


def _raw(bench: Bench) -> list[str]:
    content = random.Random(5).randbytes(10_000 * 30)
    (bench.folder / "raw").write_bytes(content)
    receiver = bench.recv("--out", str(bench.out / "raw"))
    sender = bench.send("--raw", "10000", "--rate", "0", str(bench.folder / "raw"))
    complaints = ended(sender, OK) + ended(receiver, OK)
    return complaints or ([] if (bench.out / "raw").read_bytes() == content else ["it differs"])


def _patterns(bench: Bench) -> list[str]:
    receiver = bench.recv("--check")
    time.sleep(1)
    began = time.monotonic()
    sender = bench.send("--frames", "250", "--rate", "25", *["test:160x120"] * 4)
    receiver.wait_event("rates", 1, of="seconds")
    reported, elapsed = receiver.events("rates")[0]["seconds"], time.monotonic() - began
    complaints = [] if reported <= elapsed else [f"a report of {reported} s, {elapsed} s after the sender's begin"]
    complaints += _status(bench) + _watched(bench)
    complaints += ended(sender, OK) + ended(receiver, OK)
    if complaints:
        return complaints
    end = _last(receiver)
    complaints += [] if (end["checked"], end["damaged"]) == (1000, 0) else [f"compared: {end}"]
    rates = receiver.events("rates")
    told = [device for event in rates for device in event["devices"] if device["latency_ms"] is not None]
    return complaints + ([] if told else ["no latency was told"])


def _status(bench: Bench) -> list[str]:
    """Both ends run on this host, if in different networks: another process sees their devices."""
    deadline = time.monotonic() + 20
    while True:
        outcome = bench.lab.b.run([str(build.binary()), "stream", "status", "--here", "--json"])
        if outcome.returncode != 0:
            return [outcome.explain()]
        reports = [json.loads(line) for line in outcome.stdout.splitlines()]
        if {report["role"]: len(report["devices"]) for report in reports} == {"recv": 4, "send": 4}:
            return []
        if not reports or time.monotonic() > deadline:
            return [f"status: {reports}"]
        time.sleep(0.1)


def _watched(bench: Bench) -> list[str]:
    """It ends with the program that reads it."""
    command = shlex.join([str(build.binary()), "stream", "status", "--watch", "--json"])
    outcome = bench.lab.b.run(["timeout", "20", "sh", "-c", f"{command} | head -1"])
    return [] if outcome.returncode == OK and outcome.stdout else [outcome.explain()]


def _killed(bench: Bench) -> list[str]:
    receiver = bench.recv("--check")
    first = bench.send("--rate", "50", "test:160x120", "test:160x120")
    receiver.wait_event("rates", 1, of="seconds")
    first.signal(signal.SIGKILL)
    second = bench.send("--rate", "50", "--frames", "30", "test:160x120", "test:160x120", code="")
    complaints = ended(second, OK) + ended(receiver, OK)
    if complaints:
        return complaints
    end = _last(receiver)
    restarts = [device["restarts"] for device in end["devices"]]
    complaints += [] if restarts == [1, 1] else [f"restarts: {restarts}"]
    return complaints + ([f"damaged: {end}"] if end["damaged"] else [])


def _receiver_killed(bench: Bench) -> list[str]:
    receiver = bench.recv("--check")
    sender = bench.send("--rate", "50", "--frames", "150", "test:160x120", "test:160x120")
    receiver.wait_event("rates", 1, of="seconds")
    receiver.signal(signal.SIGKILL)
    receiver = bench.recv("--check")
    complaints = ended(sender, OK) + ended(receiver, OK)
    if complaints:
        return complaints
    end = _last(receiver)
    missing = [device["missing"] for device in end["devices"]]
    complaints += [f"what the first one took is told as missing: {missing}"] if any(missing) else []
    return complaints + ([f"damaged: {end}"] if end["damaged"] else [])


def _down(bench: Bench) -> list[str]:
    """No frame is lost: those that were on their way are sent again."""
    recordings = [_recording(bench.folder / f"{device}.y4m", device, 600) for device in range(2)]
    receiver = bench.recv("--out", f"{bench.out}/{{device}}.y4m")
    sender = bench.send(*map(str, recordings))
    receiver.wait_event("rates", 1, of="seconds")
    for state in ("down", "up"):
        outcome = bench.lab.a.run(["ip", "link", "set", INTERFACE, state])
        if outcome.returncode != 0:
            return [outcome.explain()]
        if state == "down":
            sender.wait_event("lost")
    complaints = ended(sender, OK) + ended(receiver, OK)
    for device, recording in enumerate(recordings):
        is_same = (bench.out / f"{device}.y4m").read_bytes() == recording.read_bytes()
        complaints += [] if is_same else [f"device {device} differs"]
    reconnects = _last(sender)["reconnects"] if not complaints else 1
    return complaints + ([] if reconnects else ["it was not connected again"])


def _silent(bench: Bench) -> list[str]:
    """Both ends know it in time, though neither has anything in flight."""
    recording = shlex.quote(str(_recording(bench.folder / "in.y4m", 3)))
    receiver = bench.recv("--out", str(bench.out / "out.y4m"))
    sender = bench.send("-", before=f"{{ cat {recording}; exec sleep 20; }} | ")
    receiver.wait_event("rates", 1, of="seconds")
    time.sleep(2)
    chain = "chain {0} {{ type filter hook {0} priority 0; policy drop; }}\n"
    began = time.monotonic()
    outcome = bench.lab.a.run(["nft", f"table inet silent {{\n{chain.format('input')}{chain.format('output')}}}"])
    complaints = [] if outcome.returncode == 0 else [outcome.explain()]
    try:
        for side in (receiver, sender):
            side.wait_event("lost")
            seconds = time.monotonic() - began
            complaints += [] if seconds < SILENCE_S else [f"known after {seconds:.1f} s: {side.said()}"]
    finally:
        bench.lab.a.run(["nft", "delete", "table", "inet", "silent"])
        for side in (sender, receiver):
            side.signal(signal.SIGINT)
    return complaints


def _interface_again(bench: Bench) -> list[str]:
    """It has the same name, and is another device: the receiver's blocks were of the former."""
    a, b = bench.lab.a, bench.lab.b
    near, far = "10.78.0.1", "10.78.0.2"
    receiver = bench.recv("--keep", "--check")
    complaints: list[str] = []
    for number, code in ((1, CODE), (2, "")):
        commands = [
            (a, ["ip", "link", "add", "again", "type", "veth", "peer", "name", "again", "netns", b.namespace]),
            (a, ["ip", "address", "add", f"{near}/24", "dev", "again"]),
            (b, ["ip", "address", "add", f"{far}/24", "dev", "again"]),
            (b, ["ip", "link", "set", "again", "up"]),
            (a, ["ip", "link", "set", "again", "up"]),
        ]
        for host, command in commands:
            outcome = host.run(command)
            if outcome.returncode != 0:
                return [outcome.explain()]
        _wait_for(partial(_has_told, receiver, far, number))
        complaints += ended(bench.send("--frames", "5", "test", code=code, to=far), OK)
        a.run(["ip", "link", "delete", "again"])
        _wait_for(lambda: far not in receiver.events("addresses")[-1]["addresses"])
    receiver.signal(signal.SIGINT)
    end = _last(receiver)
    return complaints + ([] if (end["checked"], end["damaged"]) == (10, 0) else [f"compared: {end}"])


def _has_told(receiver: Side, address: str, times: int) -> bool:
    """Whether the receiver has told so often that it listens there."""
    return sum(address in event["addresses"] for event in receiver.events("addresses")) >= times


def _wait_for(condition: Callable[[], bool], otherwise: str = "the receiver does not follow the interfaces") -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise)
        time.sleep(0.05)


def _wrong_code(bench: Bench) -> list[str]:
    receiver = bench.recv()
    complaints = ended(bench.send("test", code="lusab-babod"), UNKNOWN, "code")
    complaints += ended(bench.send("--frames", "1", "test"), OK)
    return complaints + ended(receiver, OK)


def _files(bench: Bench) -> list[str]:
    """The handshake succeeds, and then one end says something that the other does not know."""
    receiver = bench.recv()
    path = _recording(bench.folder / "in.y4m", 7, 1)
    command = [str(build.binary()), "send", "--json", "--code", CODE, str(path), f"{bench.lab.b.ipv4}:7480"]
    environment = {"AIRDMA_HOME": str(bench.folder / "home-a"), "AIRDMA_CODE": ""}
    sender = Side(bench.lab.a, bench.folder / "files.json", f"exec {shlex.join(command)}", environment)
    outcome = sender.end()
    complaints = [f"exit status {outcome.returncode}"] if outcome.returncode == OK else []
    complaints += ended(bench.send("--frames", "1", "test", code=""), OK)
    return complaints + ended(receiver, OK)


def _ffmpeg(bench: Bench) -> list[str]:
    """As in docs/streams.md: FFmpeg's own sums of the frames are the same at both ends."""
    picture = "ffmpeg -v error -f lavfi -i testsrc=size=320x240:rate=25:duration=2 -pix_fmt yuv420p"
    there, here, pipe = (bench.folder / name for name in ("there", "here", "pipe"))
    os.mkfifo(pipe)
    reading = shlex.join(["ffmpeg", "-v", "error", "-i", str(pipe), "-f", "framemd5", str(there)])
    receiver = bench.recv("--out", str(pipe), before=f"{reading} & ")
    sender = bench.send("--rate", "0", "-", before=f"{picture} -f yuv4mpegpipe - | ")
    complaints = ended(sender, OK) + ended(receiver, OK)
    outcome = bench.lab.a.run(["sh", "-c", f"{picture} -f framemd5 {shlex.quote(str(here))}"])
    if complaints or outcome.returncode != 0:
        return [*complaints, outcome.explain()]
    sent = _sums(here)
    _wait_for(lambda: len(_sums(there)) >= len(sent), "FFmpeg does not end")
    return [] if _sums(there) == sent and len(sent) == 50 else [f"sums: {_sums(there)}, not {sent}"]


def _sums(path: Path) -> list[str]:
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.rpartition(",")[2].strip() for line in lines if not line.startswith("#")]
