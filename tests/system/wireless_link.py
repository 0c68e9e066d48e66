"""`airdma link`: real links, with real packets on them, and what is left of them afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from airdma_lab import build
from case import Tally

PACKET_BYTES = 1472
SLOW = ["--profile", "wifi5-80", "--mcs", "0", "--snr", "60"]
SLOW_MBIT = 60.7
"""UDP goodput of 802.11ac, 80 MHz, two streams, MCS 0: few packets, so that a busy machine carries
it too.
"""

SEND = f"""
import os, socket, sys, time
to = (os.environ["AIRDMA_LINK_PEER"], 9)
end = time.monotonic() + float(sys.argv[1])
pause = float(sys.argv[2])
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.setsockopt(1, 7, 8 << 20)
sent = 0
while time.monotonic() < end:
    socket.sendto(bytes({PACKET_BYTES}), to)
    sent += 1
    if pause:
        time.sleep(pause)
print(sent)
"""
REACH = """
import os, socket, subprocess, time
peer = os.environ["AIRDMA_LINK_PEER"]
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while b"lladdr" not in subprocess.run(["ip", "neigh", "show", peer], stdout=subprocess.PIPE).stdout:
    socket.sendto(b".", (peer, 7))
    time.sleep(0.05)
"""
COUNT = """
import socket, sys, time
socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket.setsockopt(1, 8, 8 << 20)
socket.bind(("", 9))
print("ready", flush=True)
count, first, last = 0, None, None
socket.settimeout(15)
try:
    while True:
        socket.recv(2000)
        last = time.monotonic()
        first = first or last
        count += 1
        socket.settimeout(1)
except TimeoutError:
    print(count, last - first if first else 0)
"""


def run(tally: Tally, folder: Path) -> None:
    """Runs all of them, out of the sight of other links of this user."""
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    tests: list[tuple[str, Callable[[], list[str]]]] = [
        ("the rate is the radio's", _rate),
        ("TCP makes segmented packets, as on any interface", _segmented),
        ("lost packets are lost one by one", _loss),
        ("nothing is left of a link", _ends),
        ("a crash leaves nothing that down does not remove", _crash),
        ("Ctrl-C ends a link in the foreground", _interrupted),
        ("an interface that vanishes is said", _vanishes),
        ("two interfaces that are there", _between),
        ("what cannot be is said", lambda: _refusals(folder)),
        ("virtual time is the same again", _twin),
        ("airdma bench wireless", lambda: _bench(folder)),
    ]
    for name, test in tests:
        started = time.monotonic()
        try:
            complaints = test()
        finally:
            _airdma("down", "--all")
        tally.record(f"airdma link: {name}", complaints, time.monotonic() - started)


def _airdma(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(build.binary()), "link", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def _up(*words: str) -> None:
    result = _airdma("up", *words)
    if result.returncode != 0:
        raise RuntimeError(result.stdout + result.stderr)


def _packets(seconds: float, pause: float = 0) -> tuple[int, int, float]:
    """Sends from A to B; how many packets left, how many arrived, and in how many seconds."""
    link = [str(build.binary()), "link", "exec"]
    counter = subprocess.Popen([*link, "B", "--", "python3", "-c", COUNT], stdout=subprocess.PIPE, text=True)
    assert counter.stdout
    counter.stdout.readline()
    sender = [*link, "A", "--", "python3", "-c", SEND, str(seconds), str(pause)]
    sent = subprocess.run(sender, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    count, took = counter.communicate(timeout=60)[0].split()
    return int(sent), int(count), float(took)


def _rate() -> list[str]:
    _up(*SLOW)
    mbit = []
    for _ in range(3):
        _, count, seconds = _packets(1.5)
        mbit.append(count * PACKET_BYTES * 8 / max(seconds, 0.1) / 1e6)
    if abs(statistics.median(mbit) / SLOW_MBIT - 1) > 0.1:
        return [f"{mbit} Mb/s of UDP in place of {SLOW_MBIT}"]
    status = _airdma("status").stdout
    return [] if re.search(r"A to B: .* MCS 0, queue", status) else ["status", status]


def _segmented() -> list[str]:
    _up(*SLOW)
    show = [str(build.binary()), "link", "exec", "A", "--", "ip", "-details", "link", "show", "air0"]
    shown = subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
    segments = re.search(r"gso_max_segs (\d+)", shown)
    return [] if segments and int(segments[1]) > 1 else ["each segment by itself", shown]


def _loss() -> list[str]:
    _up(*SLOW, "--loss", "0.25")
    # Requests for the hardware address are lost like anything else, and packets that wait for the
    # answer are not sent.
    reach = [str(build.binary()), "link", "exec", "A", "--", "python3", "-c", REACH]
    subprocess.run(reach, check=True, timeout=60)
    sent, count, _ = _packets(2, pause=0.001)
    share = 1 - count / sent
    # Four standard deviations. A busy machine sends less.
    good = sent > 50 and abs(share - 0.25) < 4 * (0.25 * 0.75 / sent) ** 0.5
    return [] if good else [f"{count} of {sent} arrived with a loss of 0.25", _airdma("status").stdout]


def _ends() -> list[str]:
    before = _processes()
    _up(*SLOW)
    program = subprocess.Popen([str(build.binary()), "link", "exec", "A", "--", "sleep", "600"])
    _wait(lambda: _command(program.pid).startswith("sleep"))
    result = _airdma("down")
    complaints = [] if "1 programs" in result.stdout else [result.stdout + result.stderr]
    complaints += [] if program.wait(10) != 0 else ["the program ended well"]
    complaints += [] if "no link is up" in _airdma("status").stdout else ["it is still there"]
    left = _processes() - before
    return [*complaints, *([f"processes are left: {left}"] if left else [])]


def _crash() -> list[str]:
    _up(*SLOW)
    program = subprocess.Popen([str(build.binary()), "link", "exec", "B", "--", "sleep", "600"])
    _wait(lambda: _command(program.pid).startswith("sleep"))
    for controller in _processes():
        os.kill(controller, signal.SIGKILL)
    _wait(lambda: not _processes())
    complaints = [] if "crashed" in _airdma("status").stdout else ["status does not say that it crashed"]
    refused = _airdma("exec", "A", "--", "true")
    complaints += [] if "airdma link down" in refused.stderr else ["exec: " + refused.stderr]
    # The next takes the name, and ends what the other left.
    _up(*SLOW)
    complaints += [] if program.wait(10) != 0 else ["the program ended well"]
    _airdma("down", "--all")
    complaints += [] if "no link is up" in _airdma("status").stdout else ["it is still there"]
    return complaints


def _interrupted() -> list[str]:
    command = [str(build.binary()), "link", "up", "--foreground", *SLOW]
    link = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert link.stdout
    first = link.stdout.readline()
    link.send_signal(signal.SIGINT)
    ended = link.wait(20)
    complaints = [] if "is up" in first else [first]
    complaints += [] if ended == 0 else [f"exit status {ended}"]
    return complaints + ([] if "no link is up" in _airdma("status").stdout else ["it is still there"])


def _vanishes() -> list[str]:
    _up(*SLOW)
    subprocess.run([str(build.binary()), "link", "exec", "A", "--", "ip", "link", "del", "air0"], check=False)
    _wait(lambda: not _processes())
    refused = _airdma("exec", "A", "--", "true")
    return [] if "has ended" in refused.stderr and "air0 of host A" in refused.stderr else [refused.stderr]


def _between() -> list[str]:
    other = subprocess.Popen(["unshare", "-n", "sleep", "60"])
    try:
        # Until then `ip` and `nsenter` would find the namespace that unshare still shares.
        _wait(lambda: _command(other.pid).startswith("sleep"))
        return _between_namespaces(other.pid)
    finally:
        subprocess.run(["ip", "link", "del", "lva"], check=False)
        other.kill()
        other.wait()


def _between_namespaces(other: int) -> list[str]:
    inside = ["nsenter", "-t", str(other), "-n"]
    for command in [
        ["ip", "link", "add", "lva", "type", "veth", "peer", "name", "lvb", "netns", str(other)],
        ["ip", "addr", "add", "10.79.0.1/24", "dev", "lva"],
        ["ip", "link", "set", "lva", "up"],
        [*inside, "ip", "addr", "add", "10.79.0.2/24", "dev", "lvb"],
        [*inside, "ip", "link", "set", "lvb", "up"],
    ]:
        subprocess.run(command, check=True)
    _up("--between", f"lva,{other}:lvb", *SLOW)
    counter = subprocess.Popen([*inside, "python3", "-c", COUNT], stdout=subprocess.PIPE, text=True)
    assert counter.stdout
    counter.stdout.readline()
    environment = {**os.environ, "AIRDMA_LINK_PEER": "10.79.0.2"}
    subprocess.run(["python3", "-c", SEND, "1.5", "0"], check=True, timeout=60, env=environment)
    count, seconds = counter.communicate(timeout=60)[0].split()
    mbit = int(count) * PACKET_BYTES * 8 / max(float(seconds), 0.1) / 1e6
    complaints = [] if abs(mbit / SLOW_MBIT - 1) < 0.2 else [f"{mbit} Mb/s of UDP in place of {SLOW_MBIT}"]
    shaped = ["tc", "qdisc", "show", "dev", "lva"]
    # After a crash it is down that takes away what was put there.
    for controller in _processes():
        os.kill(controller, signal.SIGKILL)
    _wait(lambda: not _processes())
    for expected, words in [(True, "status"), (False, "down")]:
        _airdma(words)
        found = "htb" in subprocess.run(shaped, capture_output=True, text=True, check=True).stdout
        complaints += [] if found == expected else [f"HTB after {words}: {found}"]
    return complaints


def _refusals(folder: Path) -> list[str]:
    profile = folder / "absurd.toml"
    text = _airdma("profiles", "wifi5-80").stdout
    profile.write_text(text.replace("snr_db = 35.0", "snr_db = nan"), encoding="utf-8")
    trace = folder / "absurd.csv"
    trace.write_text("time_s,rate_mbit\n0,100\n1,-5\n", encoding="utf-8")
    _up("--name", "first", *SLOW)
    cases = [
        (["up", "--name", "first"], "a link called first is up"),
        (["up", "--name", "../x"], "cannot be called"),
        (["up", "--profile", str(profile)], "absurd.toml:30: snr_db is NaN"),
        (["up", "--trace", str(trace)], "absurd.csv:3: the rate in Mb/s is -5"),
        (["up", "--profile", "wifi9"], "no profile is called wifi9"),
        (["up", "--loss", "2"], "--loss 2: it must be between 0 and 1"),
        (["exec", "A", "--name", "second", "--", "true"], "no link called second is up"),
        (["down", "second"], "no link called second is up"),
        (["down", "--name", "second"], "no link called second is up"),
        (["exec", "C", "--", "true"], "a host is A or B"),
        (["exec", "A", "--name", "first", "--", "/not/there"], "/not/there"),
    ]
    complaints = []
    for words, expected in cases:
        result = _airdma(*words)
        if result.returncode == 0 or expected not in result.stderr:
            complaints.append(f"{words}: {result.returncode}, {result.stdout}{result.stderr}")
    return complaints


def _twin() -> list[str]:
    command = [str(build.binary()), "sim", "link", "--walk", "away", "--seed", "3", "--acks", "2", "--every", "5"]
    twice = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout for _ in range(2)]
    rows = twice[0].splitlines()
    complaints = [] if twice[0] == twice[1] else ["two runs differ"]
    goodput = [float(row.split(",")[3]) for row in rows[1:]]
    return complaints if len(rows) > 8 and goodput[0] > 2 * goodput[-1] else [*complaints, *rows]


def _bench(folder: Path) -> list[str]:
    stem = folder / "wireless"
    first = _measured(stem, "poor/(udp|tcp_cubic|quic_cubic)/1$")
    page = stem.with_suffix(".md").read_text(encoding="utf-8") if first else ""
    complaints = [] if set(first) == {"udp", "tcp_cubic", "quic_cubic"} else [f"measured were {set(first)}"]
    complaints += [] if "of the line rate" in page and "wireless-goodput.svg" in page else [page]
    # What is there stays, what was not is measured, and what is asked for again is.
    resumed = _measured(stem, "poor/(udp|tcp_cubic|tcp_bbr)/1$", "--resume")
    again = f"--resume measured again what was there: {first}, then {resumed}"
    complaints += [] if resumed.items() >= first.items() else [again]
    merged = _measured(stem, "poor/tcp_cubic/1$", "--merge")
    changed = {name for name in merged if merged[name] != resumed.get(name)}
    return complaints + ([] if changed == {"tcp_cubic"} else [f"--merge measured {changed}"])


def _measured(stem: Path, only: str, *words: str) -> dict[str, float]:
    """What each transport has in the file after a run of `airdma bench wireless`, in Mb/s."""
    chosen = ["--only", only, "--megabytes", "1", "--runs", "1", "--output", str(stem)]
    command = [str(build.binary()), "bench", "wireless", *chosen, *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if result.returncode:
        print(result.stdout + result.stderr)
        return {}
    cases = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))["cases"]
    return {case["transport"]: case["samples"][0]["mbit"] for case in cases}


def _processes() -> set[int]:
    """Controllers of links that this binary drives."""
    binary = str(build.binary())
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {number for number in numbers if _command(number).startswith(f"{binary} link serve")}


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    except OSError:
        return ""


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
