"""`airdma send` and `airdma recv` with the file systems of a stock kernel: the host's end is in
memory, the guest's is a disk of each kind.

tests/system/odd_disks.py does so with stand-ins, without a guest.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airdma_lab import build
from airdma_lab.program import Outcome
from file_transfer import CODE, FLAWED, OK, Bench, Side, ended, memory
from guest import HOST_FOLDER, Guest, GuestError
from stand import Row

if TYPE_CHECKING:
    from stand import Stand

AT = "/mnt/disk"
BINARY = "/tmp/airdma"
MAKE_S = 180.0
"""The programs that make file systems, and servers, run on an emulated CPU."""
_USER = "setpriv --reuid 1000 --regid 1000 --clear-groups"
_TIMEOUT_S = 60.0
_LARGE_BYTES = 9_000_000
_SLOW_MBIT = 50
"""Data is made durable each second: enough of it is still to come then."""
_USUAL_S = 1_700_000_001
_UMASK = 0o022
_GRAIN_NS = 2_000_000_000
_RARE = frozenset({"tree/far", "tree/nix", "tree/old"})
"""With times that some disks do not have."""
_OUT = frozenset({"tree/out"})
"""A link that leads outside arrives nowhere."""


class Disk(NamedTuple):
    """A kind of disk, and what it does not take or keep of the tree that `_make` makes."""

    name: str
    kind: str
    """For guest/disk."""
    lacks: frozenset[str] = frozenset()
    """What does not arrive there."""
    unkept: tuple[str, ...] = ()
    """What the receiver tells that is not kept."""
    is_roots: bool = False
    """The receiver and the sender in the guest are root, else an ordinary user."""
    kernels: tuple[str, ...] = ("6.1", "6.12")
    """Those of Debian that have it."""
    listed: tuple[str, str] = ("", "")
    """A name that its directory lists in place of another: the file has both."""


class Found(NamedTuple):
    """An entry, wherever it is."""

    kind: str
    mode: int
    time_ns: int
    content: str
    """A link's target, or a hash of a file's content."""


class GuestSide(Side):
    """One of the two commands, in the guest."""

    def __init__(self, guest: Guest, argv: list[str], is_roots: bool) -> None:
        home = f"/tmp/home-{'root' if is_roots else 'user'}"
        user, owner = ("", "0") if is_roots else (_USER, "1000")
        ready = f"mkdir -p {home}; chown {owner} {home}; export AIRDMA_HOME={home} AIRDMA_CODE="
        self._job = guest.start_script(f"{ready}\nexec {user} {shlex.join(argv)}", tuple(argv))
        self.log = guest.jobs / f"{self._job.name}.out"

    def has_exited(self) -> bool:
        return self._job.has_exited()

    def signal(self, number: int) -> Outcome:
        self._job.signal(signal.Signals(number))
        return self.end()

    def end(self, timeout_s: float = _TIMEOUT_S) -> Outcome:
        return self._job.wait(timeout_s)


class Ends(NamedTuple):
    """The host's directories, and the disk in the guest."""

    stand: Stand
    bench: Bench
    disk: Disk

    def recv(self, *options: str) -> Side:
        """In the guest."""
        argv = [BINARY, "recv", "--json", "--code", CODE, "--yes", *options, AT]
        side = GuestSide(self.stand.guest, argv, self.disk.is_roots)
        side.wait_event("listening")
        return side

    def send(self, *paths: Path) -> Side:
        """From the host."""
        return self.bench.send(*paths, to=self.stand.guest.ipv4)

    def recv_here(self) -> Side:
        """At the host."""
        argv = [str(build.binary()), "recv", "--json", "--code", CODE, "--yes", str(self.bench.out)]
        side = self.bench.start(self.bench.lab.a, f"umask {_UMASK:o}; exec {shlex.join(argv)}")
        side.wait_event("listening")
        return side

    def send_there(self, *names: str) -> Side:
        """From the guest."""
        paths = [f"{AT}/{name}" for name in names]
        argv = [BINARY, "send", "--json", "--code", CODE, *paths, self.bench.lab.a.ipv4]
        return GuestSide(self.stand.guest, argv, self.disk.is_roots)

    def again(self) -> None:
        """Mounts the disk once more."""
        self.stand.guest.script("disk again", MAKE_S)

    def there(self) -> dict[str, Found]:
        """What is on the disk."""
        guest, user = self.stand.guest, "" if self.disk.is_roots else _USER
        guest.script(
            f"cd {AT}; {user} find . -mindepth 1 -printf '%P\\0%y\\0%m\\0%T@\\0%l\\0' > {HOST_FOLDER}/listing\n"
            f"{user} find . -type f -print0 | {user} xargs -0 -r sha256sum -z > {HOST_FOLDER}/hashes",
            MAKE_S,
        )
        words = os.fsdecode((guest.folder / "listing").read_bytes()).split("\0")[:-1]
        lines = os.fsdecode((guest.folder / "hashes").read_bytes()).split("\0")[:-1]
        hashes = {line[66:].removeprefix("./"): line[:64] for line in lines}
        found: dict[str, Found] = {}
        for name, kind, mode, time_s, target in zip(*[iter(words)] * 5, strict=True):
            whole, _, part = time_s.partition(".")
            time_ns = int(whole) * 10**9 + int(part[:9].ljust(9, "0"))
            found[name] = Found(kind, int(mode, 8), time_ns, target or hashes.get(name, ""))
        return found


def _here(top: Path) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for path in top.rglob("*"):
        stat = path.lstat()
        kind = "l" if path.is_symlink() else "d" if path.is_dir() else "f"
        content = ""
        if kind == "l":
            content = str(path.readlink())
        elif kind == "f":
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        found[str(path.relative_to(top))] = Found(kind, stat.st_mode & 0o7777, stat.st_mtime_ns, content)
    return found


def _make(bench: Bench) -> None:
    """Names, links, times and modes of which each is too much for some disk."""
    tree = bench.source / "tree"
    for number, name in enumerate(
        [
            *("Makefile", "makefile", "Case/one", "case/two", "caf\u00e9", "cafe\u0301", "stra\u00dfe", "STRASSE"),
            *("a:b", "d|/within", "back\\slash", "star*", "dots.", "trailing.", "trailing", "blank ", "aux"),
            *("a long name.text", "ALONGN~1.TEX", "n" * 255, "program", "secret", "old", "nix", "far", "new", "hard"),
        ]
    ):
        bench.write(f"tree/{name}", 40 + number)
    bench.write("tree/deep/er/file", 3_000_000)
    Path(os.fsdecode(os.fsencode(tree) + b"/not \xff text")).write_bytes(b"x")
    (tree / "nothing").mkdir()
    bench.write("tree/empty", 0)
    with bench.write("tree/sparse", 0).open("wb") as sparse:
        sparse.truncate(8_000_000)
        for at in (1_000_000, 6_000_000):
            sparse.seek(at)
            sparse.write(b"island")
    (tree / "linked").hardlink_to(tree / "hard")
    for name, target in (("link", "deep/er/file"), ("nowhere", "gone"), ("way", "deep"), ("out", "/etc/passwd")):
        (tree / name).symlink_to(target)
    for path in tree.rglob("*"):
        os.utime(path, ns=(0, _USUAL_S * 10**9 + 123_456_789), follow_symlinks=False)
    for name, seconds in (("old", 160_000_000), ("nix", 1), ("far", 7_258_118_400), ("new", 2_000_000_000)):
        os.utime(tree / name, (seconds, seconds))
    for name, mode in (("deep/er/file", 0o640), ("program", 0o755), ("secret", 0o400), ("deep/er", 0o555)):
        (tree / name).chmod(mode)


def _arrives(ends: Ends, options: tuple[str, ...]) -> list[str]:
    """All but what the disk lacks, of which each end is told; nothing else is there, now and after
    it was mounted once more.
    """
    disk = ends.disk
    receiver = ends.recv(*options)
    sender = ends.send(ends.bench.source / "tree")
    complaints = ended(sender, FLAWED) + ended(receiver, FLAWED)
    lacks = {_shown(name) for name in disk.lacks | _OUT}
    for side in (sender, receiver):
        told = {flaw["path"]: flaw["why"] for end in side.events("end") for flaw in end["flaws"]}
        complaints += [f"told is {told}, in place of {sorted(lacks)}"] if set(told) != lacks else []
    notes = [note for end in receiver.events("end") for note in end.get("notes", [])]
    # What is the same has its times, as far as the disk keeps them.
    unkept = [word for word in disk.unkept if word != "times" or "skip-same" not in options]
    if len(notes) != len(unkept) or any(word not in " ".join(notes) for word in unkept):
        complaints.append(f"not kept is {notes}")
    ends.again()
    return complaints + _compared(ends, disk.lacks | _OUT)


def _compared(ends: Ends, lacks: frozenset[str]) -> list[str]:
    there, here = ends.there(), _here(ends.bench.source)
    listed, name = ends.disk.listed
    if listed in there:
        there[name] = there.pop(listed)
    here = {name: of for name, of in here.items() if name not in lacks}
    complaints = [f"there is {sorted(there.keys() ^ here.keys())}"] if there.keys() != here.keys() else []
    return complaints + _unlike(here, there, "permissions" in ends.disk.unkept, "times" in ends.disk.unkept)


def _unlike(wanted: dict[str, Found], got: dict[str, Found], any_mode: bool, any_time: bool) -> list[str]:
    complaints: list[str] = []
    for name in sorted(wanted.keys() & got.keys()):
        one, other = wanted[name], got[name]
        is_link = one.kind == "l"
        is_alike = (one.kind, one.content) == (other.kind, other.content)
        is_alike = is_alike and (any_mode or is_link or one.mode == other.mode)
        is_unkept = is_link or (any_time and name in _RARE)
        if not is_alike or not (is_unkept or 0 <= one.time_ns - other.time_ns < _GRAIN_NS):
            complaints.append(f"{name} is {other} in place of {one}")
    return complaints


def _shown(name: str) -> str:
    return name.replace("\udcff", "\\xff")


def _to(ends: Ends) -> list[str]:
    """Thrice, the last time with more in a read-only directory."""
    _make(ends.bench)
    complaints: list[str] = []
    for options in ((), ("--if-exists", "skip-same"), ("--if-exists", "overwrite")):
        if "overwrite" in options:
            directory = ends.bench.source / "tree/deep/er"
            stat = directory.stat()
            directory.chmod(0o755)
            ends.bench.write("tree/deep/er/more", 100)
            directory.chmod(0o555)
            os.utime(directory, ns=(0, stat.st_mtime_ns))
        complaints += [f"to, {' '.join(options)}: {complaint}" for complaint in _arrives(ends, options)]
    return complaints


def _resumes(ends: Ends) -> list[str]:
    """Both ends are killed, and the disk is mounted once more."""
    names = [f"large/{number}" for number in range(3)]
    for number, name in enumerate(names):
        ends.bench.write(name, _LARGE_BYTES + number)
    large = ends.bench.source / "large"
    with ends.bench.lab.a.slowed(_SLOW_MBIT):
        receiver = ends.recv()
        sender = ends.send(large)
        sender.wait_event("progress", least_bytes=1, of="bytes_durable")
        receiver.signal(signal.SIGKILL)
        sender.signal(signal.SIGKILL)
    ends.again()
    receiver = ends.recv()
    sender = ends.send(large)
    complaints = ended(sender, OK) + ended(receiver, OK)
    complaints += [] if any(event["bytes"] for event in sender.events("start")) else ["it was begun anew"]
    ends.again()
    there, here = ends.there(), _here(ends.bench.source)
    wanted = {name: here[name] for name in names}
    complaints += [f"missing is {sorted(wanted.keys() - there.keys())}"] if wanted.keys() - there.keys() else []
    return complaints + _unlike(wanted, there, "permissions" in ends.disk.unkept, "times" in ends.disk.unkept)


def _from(ends: Ends) -> list[str]:
    """All that is on the disk comes back, in two parts: both ends are killed in between, and the
    disk is mounted once more.
    """
    names = sorted({name.partition("/")[0] for name in ends.there()})
    with ends.stand.netem(f"rate {_SLOW_MBIT}mbit") as idle:
        receiver = ends.recv_here()
        sender = ends.send_there(*names)
        sender.wait_event("progress", least_bytes=1, of="bytes_durable")
        receiver.signal(signal.SIGKILL)
        sender.signal(signal.SIGKILL)
    ends.again()
    receiver = ends.recv_here()
    sender = ends.send_there(*names)
    complaints = [*idle, *ended(sender, OK), *ended(receiver, OK)]
    complaints += [] if any(event["bytes"] for event in sender.events("start")) else ["it was begun anew"]
    there, here = ends.there(), _here(ends.bench.out)
    complaints += [f"back is {sorted(there.keys() ^ here.keys())}"] if there.keys() != here.keys() else []
    # The host's receiver has its umask.
    wanted = {name: of._replace(mode=of.mode & ~_UMASK) for name, of in there.items()}
    return complaints + _unlike(wanted, here, any_mode=False, any_time=False)


_ODD = frozenset({"tree/a:b", "tree/d|", "tree/d|/within", "tree/back\\slash", "tree/star*"})
_NO_TEXT = frozenset({"tree/not \udcff text"})
_CASE = frozenset({"tree/makefile", "tree/case", "tree/case/two"})
_LINKS = frozenset({"tree/link", "tree/nowhere", "tree/way"})
_CUT = frozenset({"tree/dots.", "tree/trailing."})
_FAT = _ODD | _NO_TEXT | _CASE | _LINKS | _CUT
_NEITHER = ("permissions", "times")
_DISKS = (
    Disk("ext4", "ext4"),
    Disk("vfat, iocharset=utf8", "vfat", _FAT | {"tree/blank "}, _NEITHER),
    Disk("vfat of another user", "vfat_of_another", _FAT | {"tree/blank "}, _NEITHER),
    Disk("vfat, utf8", "vfat_utf8", _FAT | {"tree/blank "}, _NEITHER),
    Disk("exfat", "exfat", _FAT, _NEITHER),
    Disk("ntfs3", "ntfs", _NO_TEXT, kernels=("6.12",)),
    Disk("ext4, casefold", "casefold", _CASE | {"tree/caf\u00e9", "tree/stra\u00dfe"}),
    Disk("xfs", "xfs"),
    Disk("btrfs", "btrfs"),
    Disk("overlayfs", "overlay"),
    Disk("NFS 4.2, root_squash", "nfs", is_roots=True),
    Disk("NFS 4.2", "nfs"),
    Disk(
        "CIFS (Samba)",
        "cifs",
        _CASE | _LINKS | _NO_TEXT | {"tree/back\\slash"},
        ("permissions",),
        # Samba lists reserved names of DOS so, whatever made them.
        listed=("tree/AHY9U3~9", "tree/aux"),
    ),
    Disk("9p", "9p", is_roots=True),
)


def is_one(name: str) -> bool:
    """Whether that is the name of a scenario with disks."""
    return name.startswith("disks: ")


def work(kernel: str) -> list[tuple[str, Callable[[Stand], None]]]:
    """Each disk, by name."""
    return [(f"disks: {disk.name}", partial(_run, disk)) for disk in _DISKS if kernel in disk.kernels]


def _run(disk: Disk, stand: Stand) -> None:
    stand.set_mtu(1500)
    stripped = stand.guest.folder / "airdma"
    subprocess.run(["strip", "-o", str(stripped), str(build.binary())], check=True)
    stand.rxe.tear_down()
    started, before = time.monotonic(), stand.airdma.counters()
    complaints: list[str] = []
    with tempfile.TemporaryDirectory(prefix="airdma-disk-", dir=memory()) as folder:
        try:
            stand.guest.script(f"[ -e {BINARY} ] || cp {HOST_FOLDER}/airdma {BINARY}; disk make {disk.kind}", MAKE_S)
            ends = Ends(stand, Bench(stand.guest.lab, Path(folder)), disk)
            for part in (_to, _resumes, _from):
                complaints += part(ends)
        except (AssertionError, RuntimeError, OSError, subprocess.CalledProcessError) as error:
            complaints.append(f"{type(error).__name__}: {error}")
        finally:
            with suppress(GuestError):
                stand.guest.script("disk down || true", MAKE_S)
                stand.rxe.set_up()
    grown = {key: value - before.get(key, 0) for key, value in stand.airdma.counters().items()}
    packets = grown["tx_packets"] + grown["rx_packets"]
    row = Row(f"disks: {disk.name}", bool(complaints), packets, grown["retransmits"], time.monotonic() - started)
    stand.record(row, complaints)
