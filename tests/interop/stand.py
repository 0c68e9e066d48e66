"""Where scenarios run, and what came of them."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import captures
from airdma_lab import build
from ends import RxeEnd
from guest import Guest, GuestError
from programs import running
from programs.end import AirdmaEnd, End
from programs.line import Line

KEPT = build.ROOT / "target" / "interop"
"""What failures leave."""
MANY = 20_000
"""Packets of which some are lost even at 0.1 %."""


@dataclass(frozen=True)
class Row:
    """One line of the table that is printed."""

    name: str
    failed: bool
    packets: int
    """That airdma's devices sent and received, both of them where airdma is at both ends."""
    retransmits: int
    """Sum of both ends."""
    seconds: float


@dataclass(frozen=True)
class Link:
    """Two ends, and what lies between them."""

    ends: Mapping[str, End]
    """By the name that scenarios call them."""
    ours: tuple[str, ...]
    """Addresses at which airdma sends: its packets are looked at."""
    capture: Callable[[Path], AbstractContextManager[None]]
    """Writes what crosses the link to that file."""


def short_name(line: Line) -> str:
    """What the client runs, without what is the same everywhere."""
    name = re.sub(r"-[xg] \{gid6\}", "IPv6", line.client.replace("{server6}", "IPv6"))
    return " ".join(re.sub(r"\{folder\}/|-d \{device\}|-[xg] \{gid\}|\{server\}|(?<= )-F\b", "", name).split())


def _wrong_packets(link: Link, file: Path, grown: Mapping[str, dict[str, int]]) -> list[str]:
    """What is wrong with the packets of airdma, or with the capture, which must have them."""
    found = [captures.inspect(file, address) for address in link.ours]
    sent = sum(of["tx_packets"] for end, of in grown.items() if end.startswith("airdma"))
    seen = sum(of.packets for of in found)
    # A kernel that is busy may leave some out.
    missing = [f"only {seen} of {sent} packets were captured"] if seen < 0.9 * sent else []
    return [*missing, *(complaint for of in found for complaint in of.bad[:10])]


def idle_netem(statistics: str, arguments: str) -> list[str]:
    """`tc -s qdisc show` of both directions: each has had packets, and of many has lost some if it
    should.
    """
    counts = [tuple(map(int, pair)) for pair in re.findall(r"Sent \d+ bytes (\d+) pkt \(dropped (\d+)", statistics)]
    complaints = [] if len(counts) == 2 else [f"netem is not there: {statistics}"]
    complaints += [f"netem has had no packets: {statistics}" for sent, _ in counts if sent == 0]
    if arguments.startswith("loss") and sum(sent for sent, _ in counts) > MANY and not sum(lost for _, lost in counts):
        complaints.append(f"netem has lost nothing: {statistics}")
    return complaints


def stood_still(grown: Mapping[str, dict[str, int]], rises: Sequence[str]) -> list[str]:
    """Complaints about counters that did not rise, by end. One that is not there is a KeyError."""
    return [f"{name} of {end} did not rise" for end, of in grown.items() for name in rises if of[name] <= 0]


def name_of(line: Line, direction: str, where: str) -> str:
    """What its row is called."""
    return f"{short_name(line)} [{', '.join([direction, *([where] if where else [])])}]"


@dataclass
class Stand:
    """The guest on its wire, and what has been found so far."""

    guest: Guest
    airdma: AirdmaEnd
    rxe: RxeEnd
    folder: Path
    rows: list[Row] = field(default_factory=list)
    mtu: int = 1500

    def wire(self) -> Link:
        """Between the host and the guest."""
        ours = (self.airdma.ipv4, self.airdma.ipv6)
        return Link({"airdma": self.airdma, "rxe": self.rxe}, ours, self.guest.capture)

    def set_mtu(self, mtu: int) -> None:
        """Sets the MTU of everything on the wire."""
        if mtu != self.mtu:
            self.guest.set_mtu(mtu)
            self.rxe.set_up()
            self.mtu = mtu

    @contextmanager
    def netem(self, arguments: str) -> Iterator[list[str]]:
        """The guest's kernel does that to what it sends, and to what comes to it. The list has what
        went wrong with that, afterwards.
        """
        complaints: list[str] = []
        if not arguments:
            yield complaints
            return
        self.guest.script(
            "modprobe ifb numifbs=1; ip link set ifb0 up\n"
            f"tc qdisc replace dev eth0 root netem limit 100000 {arguments}\n"
            f"tc qdisc replace dev ifb0 root netem limit 100000 {arguments}\n"
            "tc qdisc add dev eth0 handle ffff: ingress\n"
            "tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0"
        )
        try:
            yield complaints
        finally:
            with suppress(GuestError):
                seen = self.guest.script("for end in eth0 ifb0; do tc -s qdisc show dev $end root; done")
                complaints += idle_netem(seen, arguments)
                self.guest.script(
                    "tc qdisc del dev eth0 ingress; tc qdisc del dev eth0 root; tc qdisc del dev ifb0 root"
                )

    def run_line(
        self, link: Link, line: Line, direction: str, where: str = "", netem: str = "", rises: Sequence[str] = ()
    ) -> None:
        """Runs a line between two ends of the link: `direction` is "CLIENT -> SERVER". Each end
        must have more of the counters `rises` afterwards.
        """
        client, server = (link.ends[name] for name in direction.split(" -> "))

        def run() -> list[str]:
            words = running.words_of(server, client)
            with self.netem(netem) as idle:
                spoiled = "corrupt" in netem
                complaints = running.complaints_of(server, client, line, words, self.folder, spoiled)
            return [*idle, *complaints]

        self.judge(link, name_of(line, direction, where), run, rises)

    def judge(self, link: Link, name: str, run: Callable[[], list[str]], rises: Sequence[str] = ()) -> None:
        """Runs something that returns complaints, and captures what crosses the link meanwhile.
        Each end must have more of the counters `rises` afterwards.
        """
        file = self.folder / f"{len(self.rows)}.pcap"
        file.unlink(missing_ok=True)
        started = time.monotonic()
        grown: dict[str, dict[str, int]] = {}
        try:
            before = {end: of.counters() for end, of in link.ends.items()}
            with link.capture(file):
                complaints = run()
            for end, of in link.ends.items():
                grown[end] = {key: value - before[end].get(key, 0) for key, value in of.counters().items()}
            complaints += [*_wrong_packets(link, file, grown), *stood_still(grown, rises)]
        except (RuntimeError, KeyError, OSError) as error:
            complaints = [f"{type(error).__name__}: {error}"]
        seconds = time.monotonic() - started
        ours = [of for end, of in grown.items() if end.startswith("airdma")]
        packets = sum(of["tx_packets"] + of["rx_packets"] for of in ours)
        row = Row(name, bool(complaints), packets, sum(of["retransmits"] for of in grown.values()), seconds)
        self.record(row, complaints, file)
        file.unlink(missing_ok=True)

    def record(self, row: Row, complaints: list[str], file: Path | None = None) -> None:
        """Adds a row, and keeps what a failure has left: the complaints, and the capture in
        `file`.
        """
        self.rows.append(row)
        print(f"{'FAIL' if row.failed else 'ok  '} {row.name} ({row.seconds:.1f} s)", flush=True)
        if complaints:
            self._keep(row.name, file, complaints)
        if not self.guest.is_there:
            raise GuestError("the guest is gone: what follows was not run")

    def give_up(self, why: str) -> None:
        """Says why the rest was not run."""
        self.rows.append(Row(f"the rest: {why.splitlines()[0]}", True, 0, 0, 0.0))
        print(f"FAIL {why}", flush=True)

    def _keep(self, name: str, file: Path | None, complaints: list[str]) -> None:
        kept = KEPT / re.sub(r"[^\w.]+", "-", f"{len(self.rows)}-{name}")[:100]
        kept.mkdir(parents=True, exist_ok=True)
        if file is not None and file.exists():
            shutil.copy(file, kept / "wire.pcap")
        (kept / "said").write_text("\n".join(complaints) + "\n", encoding="utf-8")
        with suppress(GuestError):
            (kept / "kernel").write_text(self.guest.run(["dmesg"]).stdout, encoding="utf-8")
        print("\n".join(complaints), f"(kept in {kept})", sep="\n", flush=True)

    def close(self, release: str, seconds: float) -> int:
        """Prints the table. Returns the exit status."""
        width = max((len(row.name) for row in self.rows), default=0)
        print(f"\n{'scenario':{width}}  result  packets  retransmits  seconds")
        for row in self.rows:
            result = "FAILED" if row.failed else "ok"
            print(f"{row.name:{width}}  {result:6}  {row.packets:7}  {row.retransmits:11}  {row.seconds:7.1f}")
        failed = sum(row.failed for row in self.rows)
        slowest = sorted(self.rows, key=lambda row: -row.seconds)[:3]
        print("slowest:", *(f"{row.name} {row.seconds:.0f} s;" for row in slowest))
        print(f"\ninterop with {release}: {len(self.rows) - failed} passed, {failed} failed, {seconds:.0f} s")
        return 1 if failed or not self.rows else 0
