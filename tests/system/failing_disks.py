"""`airdma send` and `airdma recv` where disks, rights and clocks are not as they should be.

strace stands in for disks that this machine does not have: the system call of the program under
test fails, as such a disk's would.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from airdma_lab import build
from airdma_lab.lab import Lab
from case import Tally
from file_transfer import CODE, FILES, FLAWED, OK, Bench, Side, differences, ended, memory

WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
"""Root is an ordinary user then: modes of files hold for it, too."""
LIMIT_BYTES = 60_000_000
"""More than what memory is made of, in files without names, to which such a limit applies as well.
"""
LONG_AGO, FAR_AHEAD = -1_000_000_000, 7_000_000_000
UPTIME_S = 300_000_000
_STEPS = (
    ("pwrite64", "1", False),
    ("renameat", "1", False),
    ("renameat2", "1", False),
    ("utimensat", "2", False),
    ("unlinkat", "1", True),
    ("unlinkat", "2", True),
)
"""Calls of the receiver, which of them, and whether the sender has said by then that it knows. The
unfinished directory is empty, has no journal yet, is about to give its tree the name, has given it;
its journal is removed, then the directory itself.
"""


def run(lab: Lab, tally: Tally) -> None:
    tests: list[tuple[str, Callable[[Bench], list[str]]]] = [
        ("a quota, or the disk, is used up on the way", _used_up),
        ("a disk that breaks when it is to make sure", _unsure),
        ("a disk that breaks under the sender", _unreadable),
        ("a limit of what a file may have", _limit),
        ("a directory that may not be written", _no_right_to_write),
        ("a file that may not be read among others", _no_right_to_read),
        ("clocks and times that are years apart", _times),
        ("a receiver that is killed between two steps of its end", _killed_at_the_end),
    ]
    with tempfile.TemporaryDirectory(prefix="airdma-disks-", dir=memory()) as folder:
        for number, (name, test) in enumerate(tests):
            started = time.monotonic()
            try:
                complaints = test(Bench(lab, Path(folder, str(number))))
            except AssertionError as error:
                complaints = [str(error)]
            tally.record(f"airdma send: {name}", complaints, time.monotonic() - started)


def failing(call: str, error: str, when: str) -> list[str]:
    """What stands before a command whose system call fails so, counted in each thread. It is our
    child, not strace's.
    """
    return _meddled(call, f"error={error}", when)


def _meddled(call: str, how: str, when: str) -> list[str]:
    trace = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    return [*trace, "-e", f"inject={call}:{how}:when={when}"]


def _used_up(bench: Bench) -> list[str]:
    path = bench.write("file", 5_000_000)
    complaints = []
    for error, words in (("EDQUOT", "quota is used up"), ("ENOSPC", "no space left"), ("EIO", "Input/output error")):
        receiver = bench.recv(before=shlex.join(["exec", *failing("pwrite64", error, "4+")]))
        complaints += _fails(bench, bench.send(path), receiver, words)
    return complaints + bench.once(path) + differences(bench)


def _unsure(bench: Bench) -> list[str]:
    # A new key is made sure of, too.
    before = bench.write("before", 100)
    complaints = bench.once(before)
    for path in (before, bench.out / "before"):
        path.unlink()
    path = bench.write("file", 100_000)
    # The file and its directory, of which each has a thread.
    receiver = bench.recv(before=shlex.join(["exec", *failing("fsync", "EIO", "1+")]))
    complaints += _fails(bench, bench.send(path), receiver, "Input/output error")
    return complaints + bench.once(path) + differences(bench)


def _unreadable(bench: Bench) -> list[str]:
    bench.write("tree/file", 5_000_000)
    (bench.source / "tree/none").touch()
    receiver = bench.recv()
    sender = bench.start(bench.lab.a, _send(bench, bench.source / "tree", *failing("pread64", "EIO", "3+")))
    complaints = ended(sender, FLAWED) + ended(receiver, FLAWED)
    for side in (sender, receiver):
        flaws = side.events("end")[0]["flaws"]
        if [of["path"] for of in flaws] != ["tree/file"] or "could not read it" not in flaws[0]["why"]:
            complaints.append(f"told is {flaws}")
    return complaints + differences(bench, but=frozenset({"tree/file"}))


def _limit(bench: Bench) -> list[str]:
    path = bench.write("file", LIMIT_BYTES + 1)
    receiver = bench.recv(before=f"exec prlimit --fsize={LIMIT_BYTES}")
    complaints = _fails(bench, bench.send(path), receiver, "ulimit -f")
    # It is known at the offer.
    return [*complaints, "something was begun"] if any(bench.out.iterdir()) else complaints


def _no_right_to_write(bench: Bench) -> list[str]:
    path = bench.write("file", 10)
    bench.out.chmod(0o555)
    receiver = bench.recv(before=shlex.join(["exec", *WITHOUT_RIGHTS]))
    complaints = _fails(bench, bench.send(path), receiver, "permission denied")
    bench.out.chmod(0o755)
    return complaints


def _no_right_to_read(bench: Bench) -> list[str]:
    bench.write("tree/open", 100_000)
    bench.write("tree/secret", 10).chmod(0)
    receiver = bench.recv()
    sender = bench.start(bench.lab.a, _send(bench, bench.source / "tree", *WITHOUT_RIGHTS))
    complaints = ended(sender, FLAWED) + ended(receiver, OK)
    skipped, flaws = sender.events("skipped"), sender.events("end")[0]["flaws"]
    for told in (skipped, flaws):
        if [of["path"] for of in told] != ["tree/secret"]:
            complaints.append(f"told is {skipped}, and at the end {flaws}")
    return complaints + differences(bench, but=frozenset({"tree/secret"}))


def _times(bench: Bench) -> list[str]:
    """No clock of a host is trusted: files have the times that they had, and each host counts from
    its own start.
    """
    for name, seconds in (("old", LONG_AGO), ("new", FAR_AHEAD)):
        os.utime(bench.write(f"tree/{name}", 10), (0, seconds))
    before = f"unshare --fork --time --monotonic={UPTIME_S} --boottime={UPTIME_S}"
    # It takes a right that containers may lack.
    is_possible = bench.lab.b.run([*before.split(), "true"]).ok
    receiver = bench.recv(before=f"exec {before}" if is_possible else "exec")
    complaints = ended(bench.send(bench.source / "tree"), OK) + ended(receiver, OK)
    return complaints + differences(bench)


def _killed_at_the_end(bench: Bench) -> list[str]:
    """As each of the calls begins that make the unfinished directory, or leave nothing of it: the
    sender, or who starts both again, finds all there.
    """
    complaints = []
    for number, (call, when, knows) in enumerate(_STEPS):
        bench.write(f"tree-{number}/file", 100_000 + number)
        path = bench.source / f"tree-{number}"
        receiver = bench.recv(before=shlex.join(["exec", *_meddled(call, "signal=KILL", when)]))
        sender = bench.send(path)
        killed = receiver.end()
        if killed.returncode != -signal.SIGKILL:
            complaints.append(f"{call} {when}: not killed: {killed.explain()}")
        found = []
        if knows:
            found += ended(sender, OK)
        else:
            sender.signal(signal.SIGKILL)
            found += bench.once(path)
        complaints += [f"{call} {when}: {complaint}" for complaint in found + differences(bench, ours=knows)]
        if knows:
            for left in bench.out.glob(".airdma-*"):
                shutil.rmtree(left)
    return complaints


def _send(bench: Bench, path: Path, *before: str) -> str:
    argv = [str(build.binary()), "send", "--json", "--code", CODE, str(path), bench.lab.b.ipv4]
    return shlex.join(["exec", *before, *argv])


def _fails(bench: Bench, sender: Side, receiver: Side, words: str) -> list[str]:
    complaints = ended(sender, FILES, words) + ended(receiver, FILES, words)
    found = sorted(path.name for path in bench.out.iterdir() if not path.name.startswith(".airdma-"))
    return complaints + ([f"{found} is there, though it is not whole"] if found else [])
