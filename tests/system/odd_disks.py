"""`airdma send` and `airdma recv` where a disk is not ext4 of one user, and a source not a file
that lies still.

exFAT, NTFS and a file system of one owner are mounted by FUSE, which needs no module of the
kernel's; strace stands in for what none of them does.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from airdma_lab import build
from airdma_lab.lab import Lab
from case import Tally
from failing_disks import WITHOUT_RIGHTS
from file_transfer import CODE, FILES, FLAWED, OK, SLOW_MBIT, Bench, Side, differences, ended, memory

TOOLS = ["mkfs.exfat", "mount.exfat-fuse", "ntfs-3g", "bindfs"]
_DISK_BYTES = 32 << 20
_LOG_BYTES = 20_000_000
_PART_BYTES = 9_000_000
_ASKED_S = 1.5
"""More than it takes to ask a person."""


class Disk(NamedTuple):
    """What a file system does not take, of the tree that `_nasty` makes."""

    name: str
    mount: Callable[[Path, Path], list[str]]
    """Makes one of an image, or of a directory, and gives the command that mounts it."""
    lacks: frozenset[str]
    """What does not arrive there."""
    unkept: str = ""
    """What arrives without it, as far as the file system says so."""


_ODD_NAMES = frozenset({"tree/a:b", "tree/d|", "tree/d|/within", "tree/not \udcff text"})
_OUT = frozenset({"tree/out"})


def _exfat(image: Path, at: Path) -> list[str]:
    subprocess.run(["mkfs.exfat", str(image)], check=True, capture_output=True)
    loop = subprocess.run(["losetup", "-f", "--show", str(image)], check=True, capture_output=True, text=True)
    return ["mount.exfat-fuse", loop.stdout.strip(), str(at), "-o", "uid=65534,gid=65534,umask=0"]


def _ntfs(image: Path, at: Path) -> list[str]:
    subprocess.run(["mkfs.ntfs", "-q", "-F", str(image)], check=True, capture_output=True)
    return ["ntfs-3g", "-o", "windows_names,uid=65534,gid=65534,umask=0", str(image), str(at)]


def _one_owner(image: Path, at: Path) -> list[str]:
    """As NFS with root_squash, CIFS and WSL: all belongs to another user, and modes and owners are
    not changed.
    """
    image.unlink()
    image.mkdir()
    owner = ["--force-user=65534", "--force-group=65534", "--chmod-deny", "--chown-deny"]
    return ["bindfs", *owner, str(image), str(at)]


_DISKS = (
    Disk("exFAT", _exfat, _ODD_NAMES | _OUT | {"tree/link", "tree/makefile"}, "permissions"),
    Disk("NTFS", _ntfs, _ODD_NAMES | _OUT, "permissions"),
    Disk("one owner for all", _one_owner, _OUT, "permissions"),
)


def run(lab: Lab, tally: Tally) -> None:
    tests: list[tuple[str, Callable[[Bench], list[str]]]] = [
        *((f"to a disk of {disk.name}", lambda bench, disk=disk: _to(bench, disk)) for disk in _DISKS),
        ("from a disk that numbers its files anew", _from_exfat),
        ("to a disk that refuses times, links and flags", _refuses),
        ("from pipes, /proc and a device", _sources),
        ("a log that grows, and a file that is cut", _grows),
        ("a read-only directory once more", _read_only),
        ("the code is asked once the receiver is there", _asked_late),
    ]
    # Where tests may not be skipped they fail, as nothing can be mounted.
    if not os.access("/dev/fuse", os.W_OK) and os.environ.get("CI") != "true":
        print("skipped: airdma send: to disks by FUSE: no /dev/fuse", flush=True)
        tests = tests[len(_DISKS) + 1 :]
    with tempfile.TemporaryDirectory(prefix="airdma-odd-", dir=memory()) as folder:
        for number, (name, test) in enumerate(tests):
            started = time.monotonic()
            try:
                complaints = test(Bench(lab, Path(folder, str(number))))
            except (AssertionError, subprocess.CalledProcessError) as error:
                complaints = [str(error)]
            tally.record(f"airdma send: {name}", complaints, time.monotonic() - started)


@contextlib.contextmanager
def _mounted(bench: Bench, disk: Disk, at: Path) -> Iterator[list[str]]:
    """Gives the command that mounts it once more."""
    image = bench.folder / "image"
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    before = _loops(image)
    command = disk.mount(image, at)
    try:
        subprocess.run(command, check=True, capture_output=True)
        yield command
    finally:
        subprocess.run(["umount", "-l", str(at)], check=False, capture_output=True)
        for loop in _loops(image) - before:
            subprocess.run(["losetup", "-d", loop], check=False, capture_output=True)


def _loops(image: Path) -> set[str]:
    listed = subprocess.run(["losetup", "-j", str(image)], check=False, capture_output=True, text=True)
    return {line.partition(":")[0] for line in listed.stdout.splitlines()}


def _nasty(bench: Bench) -> None:
    """Names, links and modes of which each is too much for some disk."""
    for name, size in (("Makefile", 40), ("makefile", 50), ("a:b", 60), ("d|/within", 70), ("deep/er/file", 3_000_000)):
        bench.write(f"tree/{name}", size)
    Path(os.fsdecode(os.fsencode(bench.source) + b"/tree/not \xff text")).write_bytes(b"x")
    tree = bench.source / "tree"
    (tree / "link").symlink_to("deep/er/file")
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "deep/er/file").chmod(0o640)
    (tree / "deep/er").chmod(0o555)
    for path in tree.rglob("*"):
        os.utime(path, ns=(0, 1_700_000_001_123_456_789), follow_symlinks=False)


def _to(bench: Bench, disk: Disk) -> list[str]:
    _nasty(bench)
    complaints: list[str] = []
    with _mounted(bench, disk, bench.out):
        for options in ((), ("--if-exists", "skip-same"), ("--if-exists", "overwrite")):
            complaints += [f"{options}: {complaint}" for complaint in _arrives(bench, disk, options)]
        shutil.rmtree(bench.out / "tree", ignore_errors=True)
        # The receiver dies when its journal vouches for all, and before anything has its name.
        before = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,syncfs", "-e"]
        before += ["inject=fsync,syncfs:signal=KILL:when=1"]
        receiver = bench.recv(before=shlex.join(["exec", *before]))
        sender = bench.send(bench.source / "tree")
        if receiver.end().returncode != -signal.SIGKILL:
            complaints.append("not killed")
        sender.signal(signal.SIGKILL)
        complaints += _arrives(bench, disk, ())
    return complaints


def _arrives(bench: Bench, disk: Disk, options: tuple[str, ...]) -> list[str]:
    """All but what the disk lacks, of which each end is told; nothing else is there."""
    receiver = bench.recv(*options)
    sender = bench.send(bench.source / "tree")
    complaints = ended(sender, FLAWED) + ended(receiver, FLAWED)
    lacks = {_shown(name) for name in disk.lacks}
    complaints += _notes(receiver, disk.unkept)
    for side in (sender, receiver):
        told = {flaw["path"] for end in side.events("end") for flaw in end["flaws"]}
        complaints += [f"told is {sorted(told)}"] if told != lacks else []
    there = {str(path.relative_to(bench.out)) for path in bench.out.rglob("*")}
    here = {str(path.relative_to(bench.source)) for path in bench.source.rglob("*")} - disk.lacks
    complaints += [f"there is {sorted(there ^ here)}"] if there != here else []
    return complaints + _unlike(bench, here & there)


def _unlike(bench: Bench, names: set[str]) -> list[str]:
    def content(path: Path) -> bytes | None:
        return path.read_bytes() if path.is_file() else None

    wrong = [name for name in sorted(names) if content(bench.source / name) != content(bench.out / name)]
    return [f"not what was sent: {wrong}"] if wrong else []


def _shown(name: str) -> str:
    return name.replace("\udcff", "\\xff")


def _from_exfat(bench: Bench) -> list[str]:
    """exFAT numbers its files anew at each mount: what was sent before counts all the same."""
    with _mounted(bench, _DISKS[0], bench.source) as mount:
        paths = [bench.write(f"{number}", _PART_BYTES + number) for number in range(3)]
        with bench.lab.a.slowed(SLOW_MBIT):
            receiver = bench.recv()
            sender = bench.send(*paths)
            sender.wait_event("progress", least_bytes=_PART_BYTES)
            # Each has the disk mounted in its own list.
            sender.signal(signal.SIGKILL)
            receiver.wait_event("lost")
            receiver.signal(signal.SIGKILL)
        subprocess.run(["umount", str(bench.source)], check=True)
        subprocess.run(mount, check=True, capture_output=True)
        for path in reversed(paths):
            path.stat()
        receiver = bench.recv()
        sender = bench.send(*paths)
        complaints = ended(sender, OK) + ended(receiver, OK)
        complaints += [] if any(event["bytes"] for event in sender.events("start")) else ["it was begun anew"]
        return complaints + _unlike(bench, {path.name for path in paths})


def _refuses(bench: Bench) -> list[str]:
    """FAT by the kernel's driver for a user that does not own it: errors where others succeed."""
    # Keys are made where links are.
    complaints = bench.once(bench.write("before", 10))
    bench.write("tree/file", 100_000)
    calls = {"utimensat": "EPERM", "renameat2": "EINVAL", "linkat": "EPERM", "symlinkat": "EPERM"}
    (bench.source / "tree/link").symlink_to("file")
    trace = ["strace", "-D", "-f", "-qq", "-o", "/dev/null"]
    for call, error in calls.items():
        trace += ["-e", f"inject={call}:error={error}"]
    receiver = bench.recv(before=shlex.join(["exec", *trace]))
    complaints += ended(bench.send(bench.source / "tree"), FLAWED) + ended(receiver, FLAWED)
    complaints += _notes(receiver, "times")
    # CIFS of Linux 6.12 to a Samba server has another word for that.
    shutil.rmtree(bench.out / "tree")
    other = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "inject=symlinkat:error=EIO"]
    receiver = bench.recv(before=shlex.join(["exec", *other]))
    complaints += ended(bench.send(bench.source / "tree"), FLAWED) + ended(receiver, FLAWED)
    told = [(flaw["path"], "symbolic link" in flaw["why"]) for end in receiver.events("end") for flaw in end["flaws"]]
    complaints += [f"told is {told}"] if told != [("tree/link", True)] else []
    return complaints + _unlike(bench, {"tree/file"})


def _notes(receiver: Side, what: str) -> list[str]:
    """What arrived and was not kept is told."""
    notes = [note for end in receiver.events("end") for note in end.get("notes", [])]
    is_told = [what in note for note in notes] == ([True] if what else [])
    return [] if is_told else [f"of {what or 'nothing'} told is {notes}"]


def _sources(bench: Bench) -> list[str]:
    pipe = bench.source / "pipe"
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    binary, to = shlex.quote(str(build.binary())), bench.lab.b.ipv4
    sending = f"{binary} send --json --code {CODE} --to {to}"
    receiver = bench.recv()
    command = f"(sleep 0.3; seq 1000 > {pipe}) & exec bash -c '{sending} {pipe} <(seq 2000) /proc/version'"
    complaints = ended(bench.start(bench.lab.a, command), OK) + ended(receiver, OK)
    there = {path.name: path.read_bytes() for path in bench.out.iterdir()}
    wanted = [b"".join(b"%d\n" % number for number in range(1, last + 1)) for last in (1000, 2000)]
    if there.get("pipe") != wanted[0] or wanted[1] not in there.values():
        complaints.append(f"of pipes there is {sorted(there)}")
    if there.get("version") != Path("/proc/version").read_bytes():
        complaints.append("/proc/version is not what it is")
    # Nothing can be said of them but that they cannot be sent.
    complaints += ended(bench.start(bench.lab.a, f"exec {sending} /dev/null"), FILES, "airdma send -")
    (bench.source / "tree").mkdir()
    receiver = bench.recv()
    # A directory in which such files are.
    complaints += ended(bench.start(bench.lab.a, f"exec {sending} /proc/sys/kernel/random"), FLAWED) + ended(
        receiver, FLAWED
    )
    return complaints


def _grows(bench: Bench) -> list[str]:
    log, cut = bench.write("tree/log", _LOG_BYTES), bench.write("tree/shorter", _LOG_BYTES + 1)
    held = log.read_bytes()
    bench.write("tree/gone", 100)
    complaints: list[str] = []
    with bench.lab.a.slowed(160):
        receiver = bench.recv()
        sender = bench.send(bench.source / "tree")
        sender.wait_event("start")
        (bench.source / "tree/gone").unlink()
        with log.open("ab") as file:
            file.write(b"one more line\n")
        os.truncate(cut, 5)
        complaints += ended(sender, FLAWED) + ended(receiver, FLAWED)
    told = {flaw["path"]: flaw["why"] for end in sender.events("end") for flaw in end["flaws"]}
    if "tree/shorter" not in told or "grew" not in told.get("tree/log", ""):
        complaints.append(f"told is {told}")
    arrived = bench.out / "tree/log"
    if not arrived.exists() or arrived.read_bytes() != held:
        complaints.append("of the log not what it held arrived")
    if (bench.out / "tree/shorter").exists():
        complaints.append("what was cut is there")
    return complaints


def _read_only(bench: Bench) -> list[str]:
    """A read-only directory gets what is new in it, and is read-only afterwards."""
    bench.write("tree/d/one", 100)
    directory = bench.source / "tree/d"
    directory.chmod(0o555)
    before = shlex.join(["exec", *WITHOUT_RIGHTS])
    complaints: list[str] = []
    for options in ((), ("--if-exists", "skip-same"), ("--if-exists", "overwrite")):
        receiver = bench.recv(*options, before=before)
        complaints += ended(bench.send(bench.source / "tree"), OK) + ended(receiver, OK)
        complaints += [f"{options}: {complaint}" for complaint in differences(bench)]
        directory.chmod(0o755)
        bench.write(f"tree/d/{len(options)}/more", 200)
        directory.chmod(0o555)
    for path in (directory, bench.out / "tree/d"):
        path.chmod(0o755)
    return complaints


def _asked_late(bench: Bench) -> list[str]:
    """No code is asked for where it is of no use: no receiver answers, or the transfer is too
    large.
    """
    path = bench.write("file", 10)
    deep = bench.source / "deep" / "/".join(["d"] * 120)
    deep.mkdir(parents=True)
    argv = [sys.executable, "-c", _AT_A_TERMINAL, str(build.binary()), "send"]
    sides = [
        bench.start(bench.lab.a, f"exec {shlex.join([*argv, str(source), bench.lab.b.ipv4])}")
        for source in (path, bench.source / "deep")
    ]
    # That no receiver answers takes longer to find out.
    time.sleep(_ASKED_S)
    os.kill(sides[0].program.pid, signal.SIGTERM)
    complaints = []
    for side, status, words in zip(sides, (-signal.SIGTERM, FILES), ("", "more than 100 directories"), strict=True):
        outcome = side.end()
        said = side.log.read_text(encoding="utf-8", errors="replace")
        found = ["the code was asked"] if "code that the receiver shows" in said else []
        found += [f"exit status {outcome.returncode}"] if outcome.returncode != status else []
        found += [f"not said: {words}"] if words not in said else []
        complaints += [*found, said] if found else []
    return complaints


_AT_A_TERMINAL = """
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    try:
        piece = os.read(terminal, 4096)
    except OSError:
        break
    sys.stdout.buffer.write(piece)
    sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
