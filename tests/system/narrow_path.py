"""A path that is narrower than the interfaces at its ends: host b routes to a third host, by a link
whose MTU is below a packet of path MTU 1,024.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from airdma_lab import build, devices
from airdma_lab.lab import INTERFACE, Host, Lab
from case import Tally
from file_transfer import CODE, INTERRUPTED, OK, Bench, ended, memory

_NARROW_MTU = 1000
_BYTES = 300_000
_FAR, _ROUTER = "10.99.0.1", "10.99.0.2"


def run(tally: Tally) -> None:
    """Runs all of them: the first one meets a path of which the kernel knows nothing yet."""
    with Lab() as lab, _third_host(lab) as far, tempfile.TemporaryDirectory(dir=memory()) as folder:
        tests = (("airdma send", _send), ("rping", _rping), ("airdma send, without ICMP", _send_in_silence))
        for name, test in tests:
            started = time.monotonic()
            try:
                complaints = test(lab, far, Path(folder))
            except AssertionError as error:
                complaints = [str(error)]
            tally.record(f"a path narrower than the interface: {name}", complaints, time.monotonic() - started)


@contextlib.contextmanager
def _third_host(lab: Lab) -> Iterator[Host]:
    name = f"{lab.b.namespace}-far"
    far = dataclasses.replace(lab.b, namespace=name, ipv4=_FAR, runtime=lab.b.runtime / "far")
    far.runtime.mkdir()
    router = lab.b.namespace
    setup = f"""
        netns add {name}
        link add far mtu {_NARROW_MTU} netns {router} type veth peer name {INTERFACE} netns {name}
        -n {router} address add {_ROUTER}/24 dev far
        -n {router} link set far up
        -n {name} address add {_FAR}/24 dev {INTERFACE}
        -n {name} link set {INTERFACE} up
        -n {name} route add default via {_ROUTER}
        -n {lab.a.namespace} route add {_FAR} via {lab.b.ipv4}
    """
    try:
        for line in filter(str.strip, setup.splitlines()):
            subprocess.run(["ip", *line.split()], check=True)
        subprocess.run([*lab.b.inside(), "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        yield far
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def _send(lab: Lab, far: Host, folder: Path) -> list[str]:
    """The first connection loses its long packets, and the router says why; the next one fits."""
    bench = Bench(lab, folder / "bench")
    file = bench.write("file", _BYTES)
    options = ["--json", "--code", CODE]
    receive = [str(build.binary()), "recv", *options, "--yes", str(bench.out)]
    receiver = bench.start(far, f"exec {shlex.join(receive)}", home="home-far")
    receiver.wait_event("listening")
    sender = bench.send(file, to=_FAR)
    complaints = ended(sender, OK) + ended(receiver, OK)
    if not complaints and (bench.out / "file").read_bytes() != file.read_bytes():
        complaints.append("the file differs")
    seen = devices.counters(lab.a)["narrow_paths"]
    return complaints if seen > 0 else [*complaints, "no counter says that the path is narrow"]


def _rping(lab: Lab, far: Host, _folder: Path) -> list[str]:
    """An unmodified program of the connection manager, once the kernel knows the path."""
    options = ["-a", _FAR, "-C", "3", "-S", "20000"]
    server = far.start(build.with_airdma(["rping", "-s", *options]))
    time.sleep(1)
    client = lab.a.run(build.with_airdma(["rping", "-c", *options]))
    ends = [client, server.wait(10)]
    far.forget(server)
    return [outcome.explain() for outcome in ends if not outcome.ok]


def _send_in_silence(lab: Lab, far: Host, folder: Path) -> list[str]:
    """The router reports nothing: the sender says what may be the case, and its remedy is one."""
    subprocess.run([*lab.b.inside(), "ip", "rule", "add", "ipproto", "icmp", "prio", "10", "blackhole"], check=True)
    subprocess.run([*lab.a.inside(), "ip", "route", "flush", "cache"], check=True)
    bench = Bench(lab, folder / "silence")
    file = bench.write("file", _BYTES)
    options = ["--json", "--code", CODE]
    receive = [str(build.binary()), "recv", *options, "--yes", str(bench.out)]
    receiver = bench.start(far, f"exec {shlex.join(receive)}", home="home-far")
    receiver.wait_event("listening")
    complaints = ended(bench.send(file, "--patience", "3", to=_FAR), INTERRUPTED, "set AIRDMA_MTU=")
    send = [str(build.binary()), "send", *options, str(file), _FAR]
    sender = bench.start(lab.a, f"exec env AIRDMA_MTU=512 {shlex.join(send)}")
    complaints += ended(sender, OK) + ended(receiver, OK)
    return complaints if complaints or (bench.out / "file").read_bytes() == file.read_bytes() else ["the file differs"]
