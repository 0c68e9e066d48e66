"""Tests of the tools themselves: Ctrl-C, no root, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from airdma_lab import build
from case import Tally

NOBODY = "65534"
UNPRIVILEGED_CASES = r"^(ibv_rc_pingpong -c -n 500 \[|ib_write_bw -F -n 500 -s 65536 \[).*mtu1500 ipv4 a->b\]$"
_NETNS = Path("/run/netns")
PID_NEVER = 4194999
"""Beyond PID_MAX_LIMIT: no process has it."""


def run(tally: Tally) -> None:
    """Runs all of them."""
    tests: list[Callable[[], list[str]]] = [demo_cleans_up_after_ctrl_c, killed_lab_leaves_no_process]
    # Without root the whole suite already runs unprivileged.
    if os.geteuid() == 0 and Path("/run").stat().st_uid == 0 and not in_user_namespace():
        tests.append(runs_without_root)
    for test in tests:
        started = time.monotonic()
        tally.record(test.__name__, test(), time.monotonic() - started)


def demo_cleans_up_after_ctrl_c() -> list[str]:
    """`make demo`, interrupted while its programs run, removes its namespaces and ends its
    programs.
    """
    demo = _start_demo(["make", "--no-print-directory", "demo"])
    try:
        namespaces, pids = _wait_for_programs(demo)
        os.killpg(demo.pid, signal.SIGINT)  # what a terminal does
        demo.wait(timeout=20)
    finally:
        _end(demo)
    complaints = [f"{name} is still there" for name in namespaces if (_NETNS / name).exists()]
    complaints += [f"process {pid} still runs" for pid in pids if Path("/proc", str(pid)).exists()]
    if demo.returncode == 0:
        complaints.append("it says that it succeeded")
    return complaints


def killed_lab_leaves_no_process() -> list[str]:
    """SIGKILL of a lab's process ends its programs and removes its hosts.

    If the process that holds the hosts was killed as well, the next lab removes their names.
    """
    demo = _start_demo([_interpreter(), "tools/demo.py"])
    try:
        namespaces, pids = _wait_for_programs(demo)
    finally:
        _end(demo)
    complaints = [f"process {pid} still runs" for pid in pids if not _goes_within(Path("/proc", str(pid)), 5)]
    complaints += [f"{name} is still there" for name in namespaces if not _goes_within(_NETNS / name, 5)]
    abandoned = _NETNS / f"airdma-lab-{PID_NEVER}-a"
    abandoned.touch()
    sweep = "from airdma_lab.lab import Lab\nwith Lab():\n  pass"
    environment = {**os.environ, "PYTHONPATH": str(build.ROOT / "tools")}
    subprocess.run([_interpreter(), "-c", sweep], env=environment, check=True)
    return [*complaints, f"{abandoned} is still there"] if abandoned.exists() else complaints


def runs_without_root() -> list[str]:
    """One pair, as a user without any privilege, in a user namespace."""
    with tempfile.TemporaryDirectory(prefix="airdma-nobody-") as folder:
        copy = Path(folder)
        copy.chmod(0o755)
        # The checkout may lie where that user cannot read.
        for part in ("tools", "tests"):
            shutil.copytree(build.ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (build.binary(), *build.binary().parent.glob("lib*.so")):
            shutil.copy(file, copy)
        drop = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]
        suite = [_interpreter(), "tests/system/run.py", "--only", "pairs", "--match", UNPRIVILEGED_CASES]
        environment = {**os.environ, "HOME": "/nonexistent", "AIRDMA_BINARY": str(copy / "airdma")}
        result = subprocess.run(
            [*drop, *suite], cwd=copy, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    good = result.returncode == 0 and "2 passed, 0 failed" in result.stdout
    return [] if good else [f"exit status {result.returncode}", result.stdout, result.stderr]


def _start_demo(argv: list[str]) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    # Its own build would be of two packages alone, with other features, and takes minutes.
    environment["AIRDMA_BINARY"] = str(build.binary())
    quiet = subprocess.DEVNULL
    return subprocess.Popen(argv, cwd=build.ROOT, env=environment, stdout=quiet, stderr=quiet, start_new_session=True)


def _wait_for_programs(demo: subprocess.Popen[bytes]) -> tuple[list[str], list[int]]:
    """Waits until the demo runs a program in each of its hosts; returns its namespaces and those
    programs' ids.
    """
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and demo.poll() is None:
        # The names of the hosts carry the number of the lab's process, whose session is the demo's.
        names = [entry.name for entry in _NETNS.glob("airdma-lab-*") if _session_of(entry.name) == demo.pid]
        busy = {name: _pids_in(name) for name in names}
        if len(busy) == 2 and all(busy.values()):
            return names, sorted(pid for pids in busy.values() for pid in pids)
        time.sleep(0.01)
    raise RuntimeError("the demo never ran programs in two namespaces")


def _pids_in(namespace: str) -> list[int]:
    listing = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in listing.stdout.split()]


def _session_of(namespace: str) -> int | None:
    try:
        return os.getsid(int(namespace.split("-")[2]))
    except (ValueError, ProcessLookupError):
        return None


def _goes_within(path: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not path.exists():
            return True
        time.sleep(0.01)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def in_user_namespace() -> bool:
    """Whether there are fewer users here than on the host."""
    # The initial user namespace maps every id to itself.
    return Path("/proc/self/uid_map").read_text(encoding="ascii").split() != ["0", "0", "4294967295"]


def _interpreter() -> str:
    # The interpreter that runs us may live in root's home (pyenv), which the other user cannot
    # reach.
    return "/usr/bin/python3"
